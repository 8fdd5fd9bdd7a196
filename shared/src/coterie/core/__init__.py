"""Core of coterie: clients, server, rounds, data and metrics shared by every paper."""

import os

# Processes of `engine.workers` are forks. gRPC, which Flower and Ray bring, crashes a fork made
# while it is called from other threads, unless told before it is imported that forks call it not.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
