"""Saving tensors, sharing memory with other libraries, queues and small tools."""
