"""Logs that settings turn on: PT_XLA_DEBUG, metrics files, graphs, a line for each step."""
