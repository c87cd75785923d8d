"""Compile: an ordered graph becomes an executable. Knows JAX; knows neither storages nor tensors."""
