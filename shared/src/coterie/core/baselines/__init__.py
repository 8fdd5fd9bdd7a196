"""Trivial baselines, to be printed beside every result."""
