"""Dispatch: from one call of PyTorch to one recorded operation: planning, views, memory, refusals, fallback."""
