"""Benchmarks: what a step costs here, beside eager PyTorch, inductor and JAX. See `README.md`."""
