"""Interop: JAX beside PyTorch: arrays that are tensors, JAX functions with gradients, XLA's own builder.

Doors: every module.
"""
