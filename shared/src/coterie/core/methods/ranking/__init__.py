"""Methods that rank items for users: federated ones, and those trained in one place."""
