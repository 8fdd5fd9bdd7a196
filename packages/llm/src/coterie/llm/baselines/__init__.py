"""Federated recommenders without a language model, as the paper compares."""
