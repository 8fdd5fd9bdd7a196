"""Settings of the methods. Torch-free; the docstring of a field is its `--help` text."""
