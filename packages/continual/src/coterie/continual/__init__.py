"""F³CRec: federated continual recommendation (Lim et al., CIKM 2025)."""
