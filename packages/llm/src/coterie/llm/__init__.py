"""PPLR: LLM-based federated recommendation (Zhao et al., arXiv 2402.09959)."""
