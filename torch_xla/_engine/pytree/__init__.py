"""Pytree: find or replace tensors and other objects inside nested Python structures.

Doors: every module.
"""
