"""How fast a round is: against a plain loop over clients, against the hardware, and as it grows."""

from coterie.continual.bench.measure import bench

__all__ = ["bench"]
