"""Assisted learning between recommenders: MTAL of Diao, Tarokh, Ding (arXiv 2110.13340)."""
