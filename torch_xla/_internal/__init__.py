"""Internal modules of PyTorch/XLA that frameworks import."""
