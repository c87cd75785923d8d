"""Layouts that are looked for: how the parameters and the batch of a program are best divided over a mesh."""
