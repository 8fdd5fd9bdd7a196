"""The methods without exchange: every organisation for itself, or one that holds all data."""
