"""Refusals: each operator of the database is called with every dtype, and refuses what the CPU refuses.

The calls are those of PyTorch's samples with their tensors converted: all of them, or the first alone, in place, with
`out=` of other dtypes, and with numbers instead of tensors. Values are not compared. `REASONS` and
docs/operator_database.md list the calls that XLA devices take and the CPU does not, or the reverse.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_xla._engine.errors import NoLowering

from .check import Verdict, spread
from .compare import leaves
from .entries import DTYPES, OF_CUDA, Entry, database
from .operands import moved

# Beside those whose values are compared.
ALL_DTYPES = {
    **DTYPES,
    "int8": torch.int8,
    "int16": torch.int16,
    "complex128": torch.complex128,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "complex32": torch.complex32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}
# The dtypes of the samples to convert, where the database has none of the dtype.
_BASES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)
# Dtypes that an `out=` may have, and that the other operands have where dtypes are mixed.
_OTHERS = (torch.float32, torch.int64, torch.complex64)
_NUMBERS = (2, 2.5, True, 1j)
# Why one of the two refuses what the other takes. docs/operator_database.md has the same table.
REASONS = {
    "accelerators": "The CPU lacks a kernel for the dtype; PyTorch's database says that CUDA has one.",
    "float8": "Both refuse float8, one for the kernel that it lacks and the other for a promotion.",
    "sparse": "The call makes or takes sparse tensors, which no XLA device has.",
    "gradient": "A backward operator called by hand with floats of unlike dtypes; autograd calls it with any.",
    "identity": "Of real numbers it returns its operand; the CPU's `out=` form lacks a kernel for the dtype.",
    "cpu only": "PyTorch's Python code converts operands on the CPU, and on no other device.",
    "mask": "An internal operator whose meta kernel refuses masks that are not bool; the CPU's kernel does not look.",
}
_BY_NAME = {
    "_softmax_backward_data": "gradient",
    "nn_functional_linear_cross_entropy_chunked": "cpu only",
    "nn_functional_linear_cross_entropy_chunked_none": "cpu only",
    "_unsafe_masked_index": "mask",
    "conj_physical": "identity",
}

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


def entries_of_all(dtypes: list[str], pattern: str = "") -> Iterator[Entry]:
    """Give every operator with each dtype, whether the CPU takes it or not."""
    import re

    for dtype in dtypes:
        for name in database():
            if re.search(pattern, name) and not name.startswith(OF_CUDA):
                yield Entry(name, dtype)


def accepted(op: Any, dtypes: set[torch.dtype], theirs: Exception | None, ours: Exception | None) -> str:
    """Return why the two may differ, a key of `REASONS`; an empty string if they may not."""
    if isinstance(ours, NoLowering) and "sparse" in str(ours).lower():
        return "sparse"
    missing = isinstance(theirs, NotImplementedError) or "not implemented for" in str(theirs)
    # Of a call that is wrong in another way, too, each says what it sees first.
    if missing and dtypes & (op.supported_dtypes("cuda") - op.supported_dtypes("cpu")):
        return "accelerators"
    if missing and "Promotion for Float8" in str(ours) or "ScalarType for Float8" in str(ours):
        return "float8" if theirs is not None else ""
    reason = _BY_NAME.get(op.formatted_name, "")
    return "" if reason == "gradient" and theirs is None else reason


def check_refusals(entry: Entry, most_samples: int) -> Verdict:
    """Compare what is refused of the calls made from up to `most_samples` samples."""
    op, dtype = database()[entry.operator], ALL_DTYPES[entry.dtype]
    verdict = Verdict(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text, arguments, call in _calls(op, dtype, most_samples):
            theirs, ours = (_refusal(call, arguments, where) for where in ("cpu", "xla"))
            verdict.samples += 1
            found = {leaf.dtype for leaf in leaves(arguments) if isinstance(leaf, Tensor)}
            if not accepted(op, found, theirs, ours) and (difference := _difference(theirs, ours)):
                kind, words = difference
                if not any(known == kind for known, _ in verdict.failures):
                    verdict.failures.append((kind, f"{text} of {sorted(map(str, found))}: {words}"))
    return verdict


def _difference(theirs: Exception | None, ours: Exception | None) -> tuple[str, str] | None:
    if theirs is None and ours is None:
        return None
    if ours is None:
        return "accepts", f"the CPU raises {type(theirs).__name__}: {str(theirs)[:200]}"
    if theirs is None:
        return "refuses", f"{type(ours).__name__}: {str(ours)[:200]}"
    if not isinstance(ours, type(theirs)):
        return "error type", f"{type(ours).__name__}: {str(ours)[:200]}; not {type(theirs).__name__}: {theirs}"
    return None


def _refusal(call: Callable[[Arguments], Any], arguments: Arguments, where: str) -> Exception | None:
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            call(moved(arguments, where))
    except Exception as error:
        return error
    return None


def _calls(op: Any, dtype: torch.dtype, most: int) -> Iterator[tuple[str, Arguments, Callable[[Arguments], Any]]]:
    supported = op.supported_dtypes("cpu")
    base = dtype if dtype in supported else next((each for each in _BASES if each in supported), None)
    if base is None:
        return
    torch.manual_seed(0)
    for _, sample in spread(list(op.sample_inputs("cpu", base)), most):
        given: Arguments = (sample.input, sample.args, sample.kwargs)
        whole = converted(given, base, dtype)
        yield "function", whole, lambda a: op.op(a[0], *a[1], **a[2])
        if op.inplace_variant is not None and isinstance(given[0], Tensor | list):
            yield "in place", whole, lambda a: op.inplace_variant(_copies(a[0]), *a[1], **a[2])
        if op.supports_out:
            for other in {dtype, *_OTHERS}:
                yield f"out= of {other}", whole, lambda a, other=other: _out(op, a, other)
        if not isinstance(given[0], Tensor):
            continue
        for other in _OTHERS:
            if other is not dtype and any(isinstance(leaf, Tensor) for leaf in leaves(given[1:])):
                mixed = (converted(given[0], base, dtype), *converted(given[1:], base, other))
                yield f"first of {dtype}", mixed, lambda a: op.op(a[0], *a[1], **a[2])
                if op.inplace_variant is not None:
                    yield (
                        f"in place, first of {dtype}",
                        mixed,
                        lambda a: op.inplace_variant(a[0].clone(), *a[1], **a[2]),
                    )
        if sample.args and isinstance(sample.args[0], Tensor):
            for number in _NUMBERS:
                scalar = (whole[0], (number, *whole[1][1:]), whole[2])
                yield f"with {number}", scalar, lambda a: op.op(a[0], *a[1], **a[2])
                if op.inplace_variant is not None:
                    yield f"in place with {number}", scalar, lambda a: op.inplace_variant(a[0].clone(), *a[1], **a[2])


def _copies(value: Any) -> Any:
    return [tensor.clone() for tensor in value] if isinstance(value, list) else value.clone()


def _out(op: Any, arguments: Arguments, dtype: torch.dtype) -> Any:
    tensor, args, kwargs = arguments
    expected = op.op(tensor, *args, **kwargs)
    if isinstance(expected, Tensor):
        return op.op(tensor, *args, **kwargs, out=torch.empty_like(expected, dtype=dtype))
    return None


def converted(value: Any, base: torch.dtype, dtype: torch.dtype) -> Any:
    """Return the arguments of a call with another dtype in place of `base`, of tensors and by name."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(dtype) if leaf.dtype is base and leaf.layout is torch.strided else leaf
        return dtype if leaf is base else leaf

    return value if base is dtype else torch.utils._pytree.tree_map(of, value)
