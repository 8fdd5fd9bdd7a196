"""Rounds of FedAvg with any module, beside a plain loop and pfl; on a GPU, beside one core."""
