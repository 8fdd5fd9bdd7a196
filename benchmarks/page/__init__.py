"""How fast a round is: beside a plain loop over clients, the hardware, other methods."""
