"""Profiles of host and device, with the times of the user's operators and lines."""
