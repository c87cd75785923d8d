"""Kernels written in Triton: `import torch_xla.experimental.triton as xla_triton`."""

from typing import NoReturn

from .._engine import runtime


def triton_call(*args: object, kernel: object, grid: object, **settings: object) -> NoReturn:
    """Raise `RuntimeError` with a remedy: JAX can call Triton's kernels on CUDA, and tensors are arrays of JAX.

    >>> from torch_xla.experimental import triton
    >>> triton.triton_call(kernel=lambda: None, grid=(1,))
    Traceback (most recent call last):
    RuntimeError: triton_call(): a kernel in Triton runs on CUDA alone, and the device is CPU. Write it in Pallas ...
    """
    device = runtime.selected_device_type()
    if device != "CUDA":
        raise RuntimeError(
            f"triton_call(): a kernel in Triton runs on CUDA alone, and the device is {device}. Write it in Pallas "
            f"(torch_xla.experimental.custom_kernel.make_kernel_from_pallas), which runs everywhere"
        )
    raise NotImplementedError(
        "triton_call(): kernels in Triton are called through JAX. Install jax-triton, and call "
        "torch_xla.interop.call_jax(lambda *arrays: jax_triton.triton_call(*arrays, kernel=…, grid=…, out_shape=…), …)"
    )
