"""The table that pairs PyTorch's dtypes with JAX's, and host tensors as NumPy arrays by it."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from . import config

_PAIRS = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}

TO_JAX: dict[torch.dtype, np.dtype] = {ours: np.dtype(theirs) for ours, theirs in _PAIRS.items()}
TO_TORCH: dict[np.dtype, torch.dtype] = {theirs: ours for ours, theirs in TO_JAX.items()}
# XLA has no complex numbers of two float16: they live in twice the memory, and each result is rounded.
TO_JAX[torch.complex32] = np.dtype(np.complex64)

# NumPy has not all of them: the bits of the others travel as integers.
BITS = {1: torch.uint8, 2: torch.int16}

# The names XLA prints in its programs, and we in ours.
SHORT_NAMES: dict[torch.dtype, str] = {
    torch.bool: "pred",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.int8: "s8",
    torch.int16: "s16",
    torch.int32: "s32",
    torch.int64: "s64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
    torch.float8_e8m0fnu: "f8e8m0fnu",
}


def to_jax(dtype: torch.dtype) -> np.dtype:
    """Return the JAX dtype of `dtype`; raises `TypeError` for one that no XLA device has (such as `torch.qint8`)."""
    try:
        return TO_JAX[dtype]
    except KeyError:
        raise TypeError(
            f"{dtype} has no counterpart on an 'xla' device. Convert to one that it has: {_known(TO_JAX)}."
        ) from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """Return the PyTorch dtype of a JAX or NumPy dtype; raises `TypeError` for one that no tensor has (such as
    `int4`).
    """
    try:
        return TO_TORCH[np.dtype(dtype)]
    except (KeyError, TypeError):  # the keys of JAX have a dtype that is none of NumPy's
        raise TypeError(
            f"an array of {dtype} cannot be a tensor. Convert it (jax.random.key_data takes keys) to one of "
            f"{_known(TO_TORCH)}."
        ) from None


def _known(table: dict[Any, Any]) -> str:
    return ", ".join(map(str, table))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a CPU tensor as a NumPy array of the matching dtype; shared where PyTorch can."""
    dtype = to_jax(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    if dtype.isbuiltin != 1:
        tensor = tensor.contiguous()
        return tensor.view(BITS[tensor.element_size()]).numpy().view(dtype)
    return tensor.numpy()


def on_device(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of `dtype` live on the device under XLA_USE_BF16 and XLA_DOWNCAST_BF16."""
    if dtype is torch.float32 and (config.use_bf16() or config.downcast_bf16()):
        return torch.bfloat16
    if dtype is torch.float64:
        if config.use_bf16():
            return torch.bfloat16
        if config.downcast_bf16():
            return torch.float32
    return dtype


def mode() -> str:
    """Name what `on_device` does now: "bf16", "downcast", or nothing where every dtype stays what it is."""
    return "bf16" if config.use_bf16() else "downcast" if config.downcast_bf16() else ""
