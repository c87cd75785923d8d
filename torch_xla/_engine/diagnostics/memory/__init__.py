"""Explain what fills the memory of the devices."""
