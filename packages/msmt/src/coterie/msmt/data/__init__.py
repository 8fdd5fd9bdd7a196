"""Samples of scenarios with several labels: generated, read, cut."""
