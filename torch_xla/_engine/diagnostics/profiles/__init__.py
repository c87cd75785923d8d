"""Profiles of host and device, and what they say of the user's operators and lines."""
