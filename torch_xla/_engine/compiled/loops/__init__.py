"""Loops and branches whose bodies are traced: scan, while loops, conditions, and their gradients."""
