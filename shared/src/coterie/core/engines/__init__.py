"""Engines: where the client half of an algorithm runs."""
