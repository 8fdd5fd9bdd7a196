"""One run: what a paper gives to it, its rounds under Lightning, its folder, its results."""
