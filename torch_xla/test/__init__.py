"""The modules that example programs and tests of PyTorch/XLA import."""
