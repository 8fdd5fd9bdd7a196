"""References beside the federated methods: popularity, bias, local and central training."""
