"""Where a wrong value or a NaN comes from: a step looked into, captured, and computed again by PyTorch."""
