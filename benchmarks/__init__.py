"""Benchmarks of speed and memory; part of the repository, of no wheel. See README.md."""
