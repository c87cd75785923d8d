"""Rules of operators of `torch.ops.xla` that are no kernels: where memory lies, sizes, linear layers, poolings."""
