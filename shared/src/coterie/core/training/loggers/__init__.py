"""Where the numbers of rounds go, as loggers of Lightning."""
