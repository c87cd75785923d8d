"""A tape grows by stores alone, without interrupts between them."""

import dis
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import pytest

from torch_xla._engine.dispatch import recording_kernel
from torch_xla._engine.ir.tape import Tape
from torch_xla._engine.tensor import storage

# Behind these Python looks whether an interrupt has come (and where a function begins, which is none of them).
INTERRUPTIBLE = ("CALL", "PRECALL", "JUMP_BACKWARD", "SEND", "YIELD", "RESUME")


def kernel_of(make: Callable[[str], Any]) -> CodeType:
    """The code of the kernel that `make` returns."""
    kernel = make("aten::add.Tensor")
    assert isinstance(kernel, FunctionType)
    return kernel.__code__


@pytest.mark.parametrize(
    "code, grown",
    [
        (Tape.append.__code__, 4),
        (Tape.enter.__code__, 3),
        (storage.enter_all.__code__, 2),
        (Tape.take_over.__code__, 3),
        (kernel_of(recording_kernel.recorder), 3),
        (kernel_of(recording_kernel.recorder_of_two), 2),
    ],
    ids=["append", "enter", "enter_all", "take_over", "recorder", "recorder_of_two"],
)
def test_lists_grow_together(code: CodeType, grown: int) -> None:
    instructions = list(dis.get_instructions(code))
    adds = [at for at, each in enumerate(instructions) if each.opname == "BINARY_OP" and each.argrepr == "+="]
    assert len(adds) == grown
    between = [each.opname for each in instructions[adds[0] : adds[-1]] if each.opname.startswith(INTERRUPTIBLE)]
    assert not between
