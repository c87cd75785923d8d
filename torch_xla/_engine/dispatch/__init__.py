"""Dispatch: from one call of PyTorch to one recorded operation: planning, views, memory, refusals, fallback.

Doors: extensions, fallback, filling, first_states, forms, growing, kernels, layouts, memory, meta_kernels, planning,
refusals, sources, value_checks, views.
"""
