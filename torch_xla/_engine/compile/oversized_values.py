"""Find a value of a program that is far larger than the host's memory.

XLA computes such a value in parts where each part is read at once, as in `(x[:, None] - y).abs().sum(1)`, and stores
none. So a value may be larger than the memory. One that is many times as large takes XLA hours, and PyTorch on the CPU
has no memory for it.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax.extend as jex

from ..compat.names.jax_source_lines import line_of
from ..metrics.human_units import size
from ..metrics.user_lines import text
from ..runtime.device_assignment import Target
from ..runtime.device_memory import host_memory

# The largest value that a program may compute with, in multiples of the memory.
MOST_TIMES = 4

# They make or move elements: XLA makes those alone that are read.
_MOVES = frozenset(
    ("broadcast_in_dim", "iota", "reshape", "transpose", "squeeze", "expand_dims", "slice", "dynamic_slice", "gather",
     "rev", "copy", "optimization_barrier")
)  # fmt: skip


def in_program(jaxpr: Any, target: Target) -> str | None:
    """Describe the first value that takes more than `MOST_TIMES` the host's memory; `None` if there is none.

    It is one that the program for `target` computes, or computes with. Only one device of the host is looked at: other
    devices have compilers or allocators that refuse, and several may hold a value together.
    """
    if not target.is_host or target.is_spread or target.is_compile_only:
        return None
    memory = host_memory()
    for atom, equation in _computed(jaxpr, MOST_TIMES * memory):
        line = line_of(equation.source_info)
        return (
            f"{list(atom.aval.shape)} {atom.aval.dtype} takes {size(_bytes(atom))}, in "
            f"{equation.source_info.name_stack}{f' at {text(line)}' if line is not None else ''}, which is more than "
            f"{MOST_TIMES} times the {size(memory)} of this machine"
        )
    return None


def _computed(jaxpr: Any, most: int) -> Iterator[tuple[Any, Any]]:
    """Yield the values of more than `most` bytes that a program computes or computes with, each with an equation."""
    for equation in jaxpr.eqns:
        inner = list(jex.core.jaxprs_in_params(equation.params))
        for each in inner:
            yield from _computed(each, most)
        if not inner and equation.primitive.name not in _MOVES:
            yield from ((atom, equation) for atom in (*equation.outvars, *equation.invars) if _bytes(atom) > most)


def _bytes(atom: Any) -> int:
    shape, dtype = getattr(atom.aval, "shape", ()), getattr(atom.aval, "dtype", None)
    if not all(isinstance(each, int) for each in shape):
        return 0  # the program leaves a length open
    return math.prod(shape) * int(getattr(dtype, "itemsize", 0))
