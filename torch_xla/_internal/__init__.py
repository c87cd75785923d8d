"""Paths of PyTorch/XLA that frameworks reach into."""
