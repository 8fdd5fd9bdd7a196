"""What several methods for any module need: halves, local training, measuring."""
