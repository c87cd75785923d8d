"""Private: every name that is not public in PyTorch or JAX and that we borrow, and all that is replaced of theirs,
each with its reason.

Doors: c10d, checkpoint, clusters, contexts, coordination, dynamo, garbage, generator_class, guard, jax, jax_effects,
patched, script, torch, understood, watching, xprof.
"""
