"""Operators of several tensors have results of the dtype that the CPU gives them, for each pair of dtypes."""

import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_xla._engine.step.schedule import clear_schedules

from .compare import leaves
from .entries import DTYPES, OF_CUDA, database
from .operands import moved
from .refusals import Arguments, converted

# The operators are divided by name; a part takes up to a quarter of a minute.
PARTS = 24
_BASES = (torch.float32, torch.int64, torch.bool)


def operators_of(part: int) -> list[str]:
    """Return the operators of one part: those with a sample that has tensors beside its first argument."""
    return [name for name in database() if not name.startswith(OF_CUDA) and zlib.crc32(name.encode()) % PARTS == part]


def pairs_of(op: Any) -> Iterator[tuple[str, Arguments]]:
    """Give the first sample with its first tensor, and its others, in each dtype; the others without dimensions too."""
    base = next((dtype for dtype in _BASES if dtype in op.supported_dtypes("cpu")), None)
    if base is None:
        return
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs("cpu", base)))
    rest = (sample.args, sample.kwargs)
    if not any(isinstance(leaf, Tensor) and leaf.dtype is base for leaf in leaves(rest)):
        return
    for first in DTYPES.values():
        for second in DTYPES.values():
            for others in (rest, torch.utils._pytree.tree_map(_first_of, rest)):
                args, kwargs = converted(others, base, second)
                yield f"{first}, {second}", (converted(sample.input, base, first), args, kwargs)


def _first_of(leaf: Any) -> Any:
    is_number = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()
    return leaf.detach().flatten()[0].clone() if is_number else leaf


def _dtypes(op: Any, arguments: Arguments, device: str) -> list[torch.dtype] | None:
    try:
        tensor, args, kwargs = moved(arguments, device)  # no sparse sample can be
        with torch.no_grad():
            result = op.op(tensor, *args, **kwargs)
    except Exception:  # `test_refusals.py` compares what is refused
        return None
    return [leaf.dtype for leaf in leaves(result) if isinstance(leaf, Tensor)]


_QUICK, _SLOW = (20,), (0, 1, 2, 8, 16)
_OTHERS = (part for part in range(PARTS) if part not in (*_QUICK, *_SLOW))


@pytest.mark.parametrize(
    "part",
    [
        *_QUICK,
        *(pytest.param(part, marks=pytest.mark.slow) for part in _SLOW),
        *(pytest.param(part, marks=pytest.mark.exhaustive) for part in _OTHERS),
    ],
)
def test_results_of_two_dtypes_have_the_dtype_that_they_have_on_the_cpu(part: int) -> None:
    found, compared = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in operators_of(part):
            for text, arguments in pairs_of(database()[name]):
                wanted, ours = (_dtypes(database()[name], arguments, device) for device in ("cpu", "xla"))
                if wanted is None or ours is None or torch.complex32 in wanted:
                    continue  # no XLA device has complex numbers of half precision
                compared += 1
                if ours != wanted:
                    found.append(f"{name} of {text}: {ours}, not {wanted}")
            clear_schedules()
    assert compared > 100, "few operators are looked at: the database has changed"
    assert not found, "\n".join(found)
