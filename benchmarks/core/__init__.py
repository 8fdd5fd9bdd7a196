"""What measurements need: turns, processes, the machine; and what every paper has in common."""
