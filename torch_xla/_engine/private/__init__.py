"""Private: every name that is not public in PyTorch or JAX and that we borrow, each with its reason."""
