"""MTAL: assisted autoencoders that organisations train on one another's residuals."""
