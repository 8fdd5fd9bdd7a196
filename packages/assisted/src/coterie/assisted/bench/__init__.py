"""How fast an organisation's local training is: beside plain torch, autograd, the hardware."""
