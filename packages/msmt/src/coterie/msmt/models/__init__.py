"""Multi-task networks: PF-MSMTrec's own and those that it is compared with."""
