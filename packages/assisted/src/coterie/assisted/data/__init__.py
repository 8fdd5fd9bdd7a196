"""Ratings of organisations, and where the cells of all of them lie."""
