"""Federated methods for any module with a loss, and trivial references."""
