"""Interactions: readers, filters, temporal blocks, per-user splits and negative sampling."""
