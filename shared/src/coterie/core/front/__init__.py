"""The front door: one call makes a federation of any module and any form of clients' data."""
