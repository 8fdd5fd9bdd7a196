"""Split learning: some layers on the client, the others on the server."""
