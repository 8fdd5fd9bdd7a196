"""Settings of MTAL and the methods it is compared with. Torch-free."""
