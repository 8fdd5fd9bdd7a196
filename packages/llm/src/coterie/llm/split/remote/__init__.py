"""The middle of a split model in another process or on another machine: gRPC, TLS, tokens."""
