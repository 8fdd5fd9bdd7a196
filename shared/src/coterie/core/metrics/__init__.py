"""Metrics: full ranking, and summaries over clients."""
