"""Measure what waiting costs the host, and where the host's time goes."""
