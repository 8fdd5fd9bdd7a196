"""What split learning costs, measured on this machine."""
