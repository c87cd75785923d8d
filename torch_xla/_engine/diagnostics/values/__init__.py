"""Find the source of a wrong value or a NaN: inspect a step, capture it, compute it again by PyTorch."""
