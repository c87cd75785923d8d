"""Fully sharded data parallelism: parameters divided among processes, gathered when a module runs."""
