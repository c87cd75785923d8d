"""Kernels by name as functions of arrays: attention of several kinds, products of groups.

JAX brings kernels for TPUs. Here are forms that every platform compiles well, with the same arguments and numbers.
"""
