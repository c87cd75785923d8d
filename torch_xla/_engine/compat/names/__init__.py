"""Private names of PyTorch, JAX and others, a module for each library or part of one, with the reason for each name."""
