"""Compile: an ordered graph becomes an executable. Knows JAX; knows neither storages nor tensors.

Doors: bundle, cache, disk, executable_key, inlining, languages, program, source_metadata.
"""
