"""Examples of next items, and how users are shared out among clients."""
