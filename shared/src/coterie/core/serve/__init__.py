"""Recommendations of a trained run over HTTP: ``coterie serve``."""
