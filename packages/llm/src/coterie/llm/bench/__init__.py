"""What split training, a switch of clients and many clients cost, measured on this machine."""

from coterie.llm.bench.measure import bench

__all__ = ["bench"]
