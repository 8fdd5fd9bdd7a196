"""What happens beside the rounds, as callbacks of Lightning."""
