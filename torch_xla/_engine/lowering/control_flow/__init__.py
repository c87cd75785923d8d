"""Loops and branches whose bodies are graphs."""
