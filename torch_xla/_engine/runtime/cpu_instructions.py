"""Keep XLA:CPU to instructions whose results are those of other processors.

Newer x86 processors convert float32 to bfloat16 by an instruction that takes subnormal numbers for zero. XLA uses it
for single elements: in sorts, in loops, in reductions to a place. Processors without it keep those numbers, as PyTorch
does. Elements that are converted side by side do not use it: what they cost is the same without it.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

from .. import config
from ..compat.names.jax import has_client

_OPTION = "xla_cpu_max_isa"
_HAVE_THEM = frozenset(("x86_64", "AMD64"))

_are_common = False  # XLA has read the option, or reads it when its first client starts


@contextmanager
def common_to_processors() -> Iterator[None]:
    """Have a client of XLA that starts within a `with` block use no such instructions, unless the user chose some.

    XLA reads its options from the environment once in a process, when JAX starts its first client. After that this has
    no effect.
    """
    global _are_common
    chosen = config.xla_flags()
    if platform.machine() not in _HAVE_THEM or _OPTION in chosen or has_client():
        yield
        return
    _are_common = True
    with config.variables_set({"XLA_FLAGS": f"{chosen} --{_OPTION}=AVX512".strip()}):
        yield


def instructions_in_force() -> str:
    """Return the instructions of programs for the CPU in words: those of the processor, or those common to others."""
    return "common" if _are_common else "the processor's"
