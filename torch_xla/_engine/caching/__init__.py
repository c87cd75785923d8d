"""Caching: tables of bounded size, and interned values. Nothing here depends on the type of the entries.

Doors: bounded, interning, least_recently_used.
"""
