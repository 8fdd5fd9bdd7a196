"""References beside the federated methods: popularity, local and central training."""
