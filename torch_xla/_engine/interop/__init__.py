"""JAX beside PyTorch: arrays that are tensors, JAX functions with gradients, pure functions that are traced once.

Doors: every module.
"""
