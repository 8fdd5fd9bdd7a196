"""Settings of PAGE, its tasks and networks by name. Torch-free."""
