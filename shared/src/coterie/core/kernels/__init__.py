"""Compiled loops for what torch does in many passes (numba); everything runs without."""
