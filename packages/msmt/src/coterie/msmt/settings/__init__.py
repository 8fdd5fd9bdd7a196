"""Settings of a run, of its data, its model and its aggregation. Torch-free."""
