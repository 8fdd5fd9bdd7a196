"""How fast the networks train, beside plain torch and what the hardware allows."""
