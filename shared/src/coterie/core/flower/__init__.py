"""Clients on other machines, on Flower's deployment runtime."""
