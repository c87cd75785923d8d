"""Fused kernels as functions of arrays: attention of several kinds, grouped and quantized matrix products."""
