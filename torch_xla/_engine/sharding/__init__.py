"""Sharding: divide the values of tensors among devices, and reach the parts.

How a sharding is written is in `ir/`, what it becomes in JAX in `lowering/machinery/jax_sharding.py`, and what users
have marked in `tensor/sharding_annotations.py`.

Doors: every module.
"""
