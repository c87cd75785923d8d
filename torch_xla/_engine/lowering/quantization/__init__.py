"""Rules of numbers that are rounded to few bits and back: PyTorch's `quantized_decomposed` operators."""
