"""Operators that are more than one recorded call: taken over above autograd, or sized by values.

In: calls from PyTorch's dispatcher. Out: calls of the recording kernel, and operations of their own.
"""
