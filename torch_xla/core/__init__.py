"""The core of the public API."""
