"""A server of recommendations under load."""
