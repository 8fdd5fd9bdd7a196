"""Solvers that say how near to the minimum they came."""
