"""The version of this package."""

__version__ = "3.0.0.dev0"
