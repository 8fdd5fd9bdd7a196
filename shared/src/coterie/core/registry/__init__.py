"""The papers that are installed and the data sets that are known. Torch-free."""
