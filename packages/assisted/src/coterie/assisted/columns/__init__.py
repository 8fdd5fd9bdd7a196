"""Models whose samples are columns: what rows have in common is learned from all columns (ours)."""
