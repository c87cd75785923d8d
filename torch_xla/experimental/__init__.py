"""Paths of PyTorch/XLA's experiments, under which programs still look for what has become ordinary."""
