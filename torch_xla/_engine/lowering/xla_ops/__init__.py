"""Rules of operators of `torch.ops.xla` other than kernels: memory, sizes, layers, sharding marks."""
