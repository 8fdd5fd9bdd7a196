"""PF-MSMTrec: personalised federated multi-scenario multi-task recommendation."""
