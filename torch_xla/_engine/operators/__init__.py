"""Operators that are more than one recorded call: taken over above autograd, or sized by values.

In: calls from PyTorch's dispatcher. Out: calls of the kernels of `dispatch/`, and operations of their own.

Doors: assertions, attention, batch_norm, checkpointing, composed, composites, data_dependent, distributions,
flop_formulas, indexing, known_values, marking, packed_attention, quantiles, recurrent, synchronized_batch_norm,
tangents.
"""
