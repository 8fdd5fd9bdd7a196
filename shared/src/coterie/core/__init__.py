"""Core of coterie: clients, server, rounds, data and metrics shared by every paper."""
