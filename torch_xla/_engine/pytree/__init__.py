"""Pytree: tensors and other objects inside nested Python structures: find them, or replace them.

Doors: every module.
"""
