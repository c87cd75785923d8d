"""Structures of PyTorch's C++ that we fill or change in memory."""
