"""Commands of the paper beside those of every paper."""
