"""Behaviour that PyTorch leaves undefined, or that rounded numbers cannot decide: programs do not contain it.

This is the one place of exclusions. A line is left out of a program if on the CPU

- it writes to a tensor that shows an element of its storage twice, and PyTorch does not refuse: the order is open;
- it reads memory that it writes under other indices, and PyTorch does not refuse: as above;
- it reads what it writes by an `out=` of a reduction or a product: PyTorch's kernels write there before they read;
- it reads uninitialised memory (`resize_` to more elements);
- it turns a float that is not finite, or out of range, into an integer: undefined in C++;
- it shows the bits of complex numbers, whose zeros have any sign, or of a NaN, whose sign and payload no standard
  settles, or a byte other than 0 and 1 as a bool;
- it is refused for the numbers in its tensors, which only the device knows: integers divided by zero, a mask that is
  too large for its source;
- it makes complex numbers that are not finite: every library multiplies them in its own way; or of dtype complex32;
- it computes with empty tensors of complex numbers or booleans: kernels then do not check dtypes;
- it applies a function of `nn.functional`, or one that takes a mean on the way, to infinities: the CPU's vectors and
  its single numbers differ (`gelu`), and so do its ways to a mean;
- its gradient goes to one of several equal elements, and which is open (`kthvalue`, `median`, `mode`, `topk`);
- it is refused, but only after some of it was done, such as an `out=` that was resized;
- it fails since the CPU has no kernel for the dtype, or its library refuses no elements (MKL's transforms): others may
  do it;
- its floats grow beyond `MOST`, shrink below `LEAST`, or were rounded so often that errors may have grown large.
"""

import numpy as np
import torch
from torch import Tensor

from tests.support.views import flat_index, geometry_of
from torch_xla._engine.ir.view import InternalOverlap, has_internal_overlap

MOST = 200.0
LEAST = 1e-6
MOST_ELEMENTS = 200
MOST_DIMENSIONS = 5

_INTEGERS = {torch.uint8: 255, torch.int8: 120, torch.int16: 30000, torch.int32: 1 << 30, torch.int64: 1 << 30}
# Each dtype represents numbers of up to this many quarters exactly, and sums of some of them.
_QUARTERS = {torch.bfloat16: 1 << 7, torch.float16: 1 << 10, torch.float32: 1 << 20, torch.complex64: 1 << 20}


def plain(tensor: Tensor) -> Tensor:
    """Without gradient and lazy bits."""
    return tensor.detach().resolve_conj().resolve_neg()


def is_tame(tensor: Tensor) -> bool:
    """Whether its size and its numbers stay in the range in which errors stay small."""
    if tensor.numel() > MOST_ELEMENTS or tensor.dim() > MOST_DIMENSIONS or tensor.layout is not torch.strided:
        return False
    if tensor.dtype is torch.complex32:
        return False
    if not tensor.numel():
        return True
    if tensor.dtype is torch.bool:
        return bool((tensor.detach().view(torch.uint8) <= 1).all())
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    numbers = plain(tensor)
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers)
        if not bool(torch.isfinite(numbers).all()):
            return False
    magnitude = numbers.double().abs()
    fits = (magnitude <= MOST) & ((magnitude >= LEAST) | (magnitude == 0))
    return bool((fits | ~torch.isfinite(magnitude)).all())


def is_short(tensor: Tensor) -> bool:
    """Whether its numbers have so few digits that no rounding can have made them."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    numbers = plain(tensor)
    numbers = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).double() * 4
    most = _QUARTERS.get(tensor.dtype, 1 << 40)
    return bool((((numbers == numbers.trunc()) & (numbers.abs() <= most)) | ~torch.isfinite(numbers)).all())


def becomes_integer(operands: list[Tensor], made: Tensor) -> bool:
    """Whether floats that C++ may make anything of may have been turned into integers."""
    most = _INTEGERS.get(made.dtype)
    if most is None:
        return False
    for operand in operands:
        if operand.is_floating_point() or operand.is_complex():
            numbers = plain(operand)
            numbers = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).double()
            least = 0 if made.dtype is torch.uint8 else -most
            if not bool(((numbers >= least) & (numbers <= most)).all()):
                return True
    return False


NOT_OF_INFINITIES = ("nn.functional", "std_mean", "var_mean")
CHOICES = ("kthvalue", "median", "mode(", "topk")
PLACES = ("masked_scatter_", "scatter", "index_", "put_", "] =", "addmm_", "addbmm_")


def is_open(source: str, target: Tensor, before: tuple[object, ...], operands: list[Tensor]) -> bool:
    """Whether PyTorch leaves open what writing to `target` does; `before`: its geometry when it was written to."""
    storage = target.untyped_storage()._cdata
    if any(word in source for word in PLACES):
        if any(operand.untyped_storage()._cdata == storage for operand in operands[1:]):
            return True
    geometry = geometry_of(target)
    if _key(target) != before or not target.numel():
        return False
    places = flat_index(geometry).ravel()
    if has_internal_overlap(geometry) is InternalOverlap.YES or len(np.unique(places)) < len(places):
        return True
    for operand in operands:
        if operand is target or operand.untyped_storage()._cdata != storage:
            continue
        theirs = geometry_of(operand)
        if operand.element_size() != target.element_size():
            return True
        same = geometry.same_elements(theirs)
        if not same and np.intersect1d(places, flat_index(theirs).ravel()).size:
            return True
    return False


def _key(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.untyped_storage()._cdata


def geometry_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal while a tensor has the same memory."""
    return _key(tensor)


def is_finite(tensor: Tensor) -> bool:
    """Whether no number is infinite or NaN."""
    return bool(torch.isfinite(tensor.detach()).all())


def is_odd_nothing(tensor: Tensor) -> bool:
    """Whether it has no elements, of a dtype that many operators refuse."""
    return not tensor.numel() and (tensor.is_complex() or tensor.dtype is torch.bool)


def puns(tensors: list[Tensor]) -> bool:
    """Whether tensors on one storage show the bits of numbers as other numbers."""
    return len({_kind(t.dtype) for t in tensors}) > 1


def _kind(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def is_a_mistake(error: Exception) -> bool:
    """Return whether an error shows that the call is wrong on every device."""
    text = str(error)
    open_errors = (
        "not implemented for",
        "ZeroDivision",
        "Could not run",
        "unsupported dtype",
        "not supported on CPU",
        "MKL FFT error",
        "elements of source",
    )
    if isinstance(error, NotImplementedError):
        return "omplex" in text  # no device has an order of complex numbers
    return type(error) in (RuntimeError, IndexError, TypeError, ValueError) and not any(e in text for e in open_errors)
