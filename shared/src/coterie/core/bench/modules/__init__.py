"""Rounds of FedAvg with any module, beside a plain loop and, on a GPU, beside one core."""
