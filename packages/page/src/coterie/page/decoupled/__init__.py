"""Another game: uploads without drift, and a personal branch that nobody else feels."""
