"""How fast a round is: against a plain loop over clients, against the hardware, and as it grows."""
