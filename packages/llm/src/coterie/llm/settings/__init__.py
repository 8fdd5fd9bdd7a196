"""Settings of a run; torch-free, and nothing of the package but one another."""
