"""Runtime: platforms, devices, buffers and memory: PJRT as JAX shows it.

Nothing here knows PyTorch's dispatcher or the graph.

Doors: every module.
"""
