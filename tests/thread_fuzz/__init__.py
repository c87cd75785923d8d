"""Threads that work on the same tensors in random ways, of which no update may be lost."""
