"""Compiled loops for what torch does in many passes; optional, by the extra ``fast`` (numba)."""
