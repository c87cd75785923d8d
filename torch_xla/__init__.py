"""The `xla` device for PyTorch: operations are recorded, compiled by XLA and run on CPU, GPU or TPU."""

from ._engine import dispatch as _dispatch

_dispatch.claim_device_name()
_dispatch.register_kernels()
_dispatch.apply_patches()
