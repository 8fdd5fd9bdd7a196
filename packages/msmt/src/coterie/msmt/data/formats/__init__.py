"""Readers of public data sets with several scenarios and tasks, one module each."""
