"""Lightning callbacks that log a federated run; `keys` alone is free of torch and lightning."""
