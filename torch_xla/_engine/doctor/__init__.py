"""Doctor: find what prevents the `xla` device from working on this machine, with a remedy for each.

It looks at PyTorch, JAX and this package from outside, and also works where they do not.

Doors: diagnosis, environment_facts.
"""
