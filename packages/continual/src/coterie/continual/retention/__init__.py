"""What a client keeps of earlier blocks, one file a method."""
