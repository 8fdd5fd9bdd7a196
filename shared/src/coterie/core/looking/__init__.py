"""Runs looked at: facts from their folders, compared, as one HTML file, in a browser."""
