"""A call of a compiled function that is interrupted at any of its instructions leaves nothing of its region on."""

import sys
from types import FrameType
from typing import Any

import torch

import torch_xla
from torch_xla._engine import compiler_options
from torch_xla._engine.compiled import eager, region
from torch_xla._engine.metrics import events

OPTIONS = {"xla_cpu_enable_fast_math": False}


class Interrupting:
    """Raises `KeyboardInterrupt` at the instruction of `region.py` with a certain number, counted from 0."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    def __call__(self, frame: FrameType, kind: str, _: object) -> Any:
        if frame.f_code.co_filename != region.__file__:
            return None
        frame.f_trace_opcodes = True
        if kind in ("call", "opcode"):
            self.seen += 1
            if self.seen == self.at + 1:
                raise KeyboardInterrupt
        return self


def interrupted(call: Any, at: int) -> bool:
    """Interrupt `call` at this instruction; return False if it has fewer."""
    before = sys.gettrace()
    sys.settrace(Interrupting(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_instruction_leaves_nothing_on() -> None:
    x = torch.ones(2, device="xla")
    call = torch_xla.compile(lambda: x.add_(1), full_graph=True, custom_compile_options=OPTIONS)
    call()
    guards, options = list(events._guards), dict(compiler_options.chosen())
    at = 0
    while interrupted(call, at):
        # Nobody has asked for anything yet: this is what a program does next.
        assert x.tolist()[0] >= 1
        assert not region.is_inside()
        assert events._guards == guards and compiler_options.chosen() == options
        at += 1
    assert at > 100


def test_eager_mode_comes_back_after_an_interrupt_in_a_compiled_function() -> None:
    x = torch.ones(2, device="xla")
    call = torch_xla.compile(lambda: x.add_(1))
    eager.switch(True)
    try:
        at = 0
        while interrupted(call, at):
            assert not region.is_inside() and eager.is_on()
            at += 7
    finally:
        eager.switch(False)


def test_a_region_inside_a_region_is_a_part_of_it() -> None:
    x = torch.ones(2, device="xla")
    inner = torch_xla.compile(lambda: x.add_(1), full_graph=True)

    def outer() -> None:
        inner()
        assert region.is_inside()
        with torch_xla.compile(full_graph=True):
            inner()
        assert region.is_inside()
        x.tolist()  # the outer one allows it

    torch_xla.compile(outer)()
    assert not region.is_inside()
    assert x.tolist() == [3, 3]
