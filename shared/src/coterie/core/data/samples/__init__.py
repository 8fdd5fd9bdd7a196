"""Labelled samples of clients, and how one data set is shared out among them."""
