"""Data of clients: interactions for recommenders, labelled samples, and where they come from."""
