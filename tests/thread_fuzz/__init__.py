"""Threads that work on the same tensors in random ways, without losing an update."""
