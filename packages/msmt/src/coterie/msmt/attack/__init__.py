"""What a server can tell of a scenario's data from what the scenario uploads, measured."""
