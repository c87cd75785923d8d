"""The pending operations as a graph. Looking at it runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compile.executable_key import key_of
from ..compile.program import Program
from ..compile.source_metadata import Origins, Scope, scopes_at
from ..ir.graph import Cut, Graph, cut, decode, effective, needed, needed_in_order
from ..ir.tape import Tape, Value
from ..metrics.user_lines import Line
from ..tensor.device import LOCK, Device, current_index, device_at
from ..tensor.storage import operand_slot, snapshot
from .liveness import held
from .step import lines_of


@dataclass(frozen=True, slots=True)
class Pending:
    """A graph with the numbers, the source lines and the scopes it was recorded with."""

    graph: Graph
    numbers: tuple[Any, ...]
    lines: tuple[Line | None, ...]
    scopes: Sequence[Scope]
    device: Device
    inputs: tuple[Value, ...]  # what it reads

    def lowered(self) -> Any:
        """Return the lowered graph: JAX's `Lowered`, which gives StableHLO and HLO."""
        program = Program(self.graph, key_of(self.graph, (), self.device.target_of(self.graph)))
        program.origins = Origins(self.lines, self.scopes)
        return program.lowered(self.numbers)


def graph_of(tensors: Sequence[torch.Tensor]) -> Pending:
    """Return the graph whose outputs are `tensors`, in their order. One that is computed already is an input."""
    if not tensors:
        return live_graph(device_at(current_index()))
    with LOCK:
        values = [snapshot(on_xla(tensor)) for tensor in tensors]
        device: Device = values[0].device
        if any(value.device is not device for value in values):
            names = ", ".join(sorted({str(tensor.device) for tensor in tensors}))
            raise RuntimeError(f"a graph belongs to one device; these tensors are on {names}")
        while True:
            tape: Tape = device.tape
            slots = [operand_slot(tape, value) for value in values]
            code, entered = tape.code, tape.values
            if not tape.ended:  # or garbage was collected, and a finalizer had it evaluated
                break
        inputs, operations, producer = decode(code)
        part = cut(inputs, operations, needed_in_order(operations, producer, slots), slots)
        return described(part, tape, entered, device)


def live_graph(device: Device) -> Pending:
    """Return the graph that the next sync of `device` would run."""
    with LOCK:
        tape: Tape = device.tape
        code, entered = tape.code, tape.values
        inputs, operations, producer = decode(code)
        somebody_holds = held(entered)  # of more than was decoded, if a finalizer has recorded meanwhile
        slots = [slot for slot, made_by in enumerate(producer) if made_by >= 0 and somebody_holds[slot]]
        part = cut(inputs, operations, needed(operations, producer, slots, effects=effective(operations)), slots)
        return described(part, tape, entered, device)


def described(part: Cut, tape: Tape, entered: Sequence[Value], device: Device) -> Pending:
    """Return a part of a tape with its numbers, lines and scopes; `entered` are the values of the tape."""
    lines = tape.all_lines(tape.code)
    return Pending(
        part.graph,
        tuple(tape.numbers[index] for index in part.numbers),
        lines_of(part, lines),
        scopes_at(part.positions, tape.scopes),
        device,
        tuple(entered[slot] for slot in part.inputs),
    )


def is_pending(tensor: torch.Tensor) -> bool:
    """Return whether what `tensor` shows is yet to be computed."""
    value = getattr(tensor.untyped_storage(), "value", None)
    return value is None or value.buffer is None


def on_xla(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself; raises for one of another device."""
    if tensor.device.type != "xla":
        raise RuntimeError(f"Expected XLA tensor. Got: {tensor.type()}")
    return tensor
