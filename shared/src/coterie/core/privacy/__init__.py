"""Privacy: what leaves a client, how many bytes, and how noise hides it."""
