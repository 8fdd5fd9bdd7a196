"""Where interactions come from: known data sets, own files, the generated sample."""
