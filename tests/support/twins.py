"""Runs one program on the CPU and on `xla`, and compares all that PyTorch shows of the two outcomes."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torch_xla

Program = Callable[[str], Any]


def numbers(*size: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """0, 1, 2, … in the order of the dimensions; made on the host, so that both devices get the same."""
    host = torch.arange(torch.Size(size).numel(), dtype=dtype).reshape(size)
    return host.clone() if device == "cpu" else host.to(device)


def shown(tensor: torch.Tensor, versions: bool, strides: bool) -> dict[str, Any]:
    """Return PyTorch's properties of a tensor besides its elements and its device."""
    return {
        "type": type(tensor).__name__,
        "size": tuple(tensor.shape),
        "stride": tensor.stride() if strides else None,
        "offset": tensor.storage_offset() if strides else None,
        "dtype": tensor.dtype,
        "conjugate": tensor.is_conj(),
        "negative": tensor.is_neg(),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "version": tensor._version if versions and not tensor.is_inference() else None,
    }


def check_same(program: Program, versions: bool = False, strides: bool = True, **tolerance: float) -> None:
    """Asserts that `program("xla")` returns what `program("cpu")` returns: values, sizes, strides, dtypes, flags."""
    expected = pytree.tree_leaves(program("cpu"))
    found = pytree.tree_leaves(program("xla"))
    torch_xla.sync()  # one program for all of it instead of one for each tensor
    assert len(expected) == len(found)
    for index, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs or (ours != ours and theirs != theirs), f"result {index}: {ours!r}, not {theirs!r}"
            continue
        assert ours.device.type == "xla", f"result {index} is on {ours.device}"
        assert shown(ours, versions, strides) == shown(theirs, versions, strides), f"result {index}"
        check_elements(ours, theirs, f"result {index}", **tolerance)


def check_elements(ours: torch.Tensor, theirs: torch.Tensor, name: str = "", **tolerance: float) -> None:
    """Asserts that two tensors of one dtype have equal elements, up to the usual tolerance for their dtype."""
    host, theirs = plain(ours.cpu()), plain(theirs)
    torch.testing.assert_close(
        host, theirs, equal_nan=True, check_stride=False, msg=lambda text: f"{name}: {text}", **tolerance
    )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without lazy bits or gradient, in a dtype that can be compared."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    return tensor.float() if "float8" in str(tensor.dtype) else tensor


def outcome(program: Program, device: str) -> Exception | None:
    """Return the error of the program, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(device)
        except Exception as error:
            return error
    return None


def check_refused(program: Program) -> None:
    """Asserts that both devices raise the same exception with the same words."""
    theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
    assert theirs is not None, "the CPU accepts this"
    assert ours is not None, f"xla accepts what the CPU refuses: {theirs!r}"
    assert type(ours) is type(theirs), f"{ours!r} instead of {theirs!r}"
    assert str(ours) == str(theirs)


def cases(table: dict[str, Program]) -> Any:
    """Decorates a test with one run for each entry of a table of programs."""
    return pytest.mark.parametrize("program", list(table.values()), ids=list(table))
