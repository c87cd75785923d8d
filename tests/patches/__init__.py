"""Leave out one patch of PyTorch or JAX after the other, and see its test fail."""
