"""What a measurement needs: the machine, and how much memory was used."""
