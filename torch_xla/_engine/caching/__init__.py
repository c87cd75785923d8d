"""Caching: tables that stay small, and values of which equal ones are one object. Nothing here knows what it keeps.

Doors: every module.
"""
