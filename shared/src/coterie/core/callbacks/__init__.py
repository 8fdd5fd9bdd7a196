"""What happens beside the rounds of a run: numbers, files, checkpoints, W&B."""
