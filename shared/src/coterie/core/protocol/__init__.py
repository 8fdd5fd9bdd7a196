"""What a paper implements: messages, the client half, the server half."""
