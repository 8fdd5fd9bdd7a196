"""What split training, a switch of clients and many clients cost, measured on this machine."""
