"""Saving, sharing memory with other libraries, queues and small tools."""
