"""What example programs and tests of PyTorch/XLA import."""
