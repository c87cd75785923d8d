"""Capture what a device records as a graph that runs again on the same memory, as a CUDA graph does.

Between `Capture.begin` and `Capture.end` operations are recorded as always, and nothing runs. `end` takes them off the
tape. Memory that they would have written holds what it held before, and memory that they made is uninitialised. Each
`CapturedGraph.replay` reads the memory as it is then, draws new random numbers, and writes the results to the memory
that held them at the end of the capture.
"""

import gc
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..compile import program_cache
from ..compile.program import Program
from ..ir.graph import cut, decode, effective, needed
from ..ir.input_output_alias import in_order, successors, takers
from ..ir.tape import Failed, Value
from ..metrics import events, user_lines
from ..metrics.events import Cause, Direction
from ..metrics.observers import observers
from ..tensor import live_counters, sharding_annotations
from ..tensor.device import LOCK, Device
from ..tensor.random_state import Generator
from ..tensor.storage import operand_slot
from .executor import prepare as prepare_program
from .executor import run as run_step
from .graphs_by_hash import drop_recorded, storages_of, stored
from .liveness import may_be_taken
from .pending_graph import Pending, described
from .step import Step
from .sync import compute, sync_device
from .unlocked_compile import wait_for_turn

# The capture that is going on in this process: nothing can run meanwhile, so there is one at most.
_running: "Capture | None" = None


def is_capturing(device: Device | None = None) -> bool:
    """Return whether operations are being captured on the device, or on any."""
    return _running is not None and (device is None or _running.device is device)


@dataclass(slots=True)
class CapturedGraph:
    """A graph, and the memory that it reads and writes."""

    pending: Pending
    sources: Sequence[Any]  # the storage of each input
    results: Sequence[tuple[Any, int]]  # storages, each with the number of the output that it gets
    moved: Sequence[tuple[Any, Any]]  # storages, each with that whose value it gets
    generators: Sequence[Generator]  # that of each draw of the capture
    draws: Sequence[int]  # which of those the graph takes
    donated: tuple[int, ...]  # the inputs that the graph overwrites

    def program(self, donates: bool = True) -> Program:
        """Return the program, which takes the memory of the inputs that it overwrites, or none."""
        graph = self.pending.graph
        return program_cache.program_of(graph, self.donated if donates else (), self.pending.device.target_of(graph))

    def prepare(self) -> None:
        """Compile the program, unless it is compiled already."""
        if self.pending.graph.operations:
            prepare_program(self.program(), self.pending.numbers, Cause.SYNC, lambda: self.pending.lines)

    def replay(self) -> None:
        """Run the graph on what its memory holds now."""
        if _running is not None:
            _running.refuse("a replay starts a program")
        self.prepare()
        read = [*self.sources, *(source for _, source in self.moved)]
        if self.pending.graph.operations:
            wait_for_turn(self.program())
        while True:
            compute([storage.value for storage in read if storage.value.buffer is None])
            with LOCK:
                # Another thread may have recorded a write there meanwhile.
                if all(storage.value.buffer is not None for storage in read):
                    self._run()
                    return

    def _run(self) -> None:
        device, graph = self.pending.device, self.pending.graph
        moved = [(to, source.value) for to, source in self.moved]
        values: list[Value] = [storage.value for storage in self.sources]
        self._check(values)
        states = [generator.draw() for generator in self.generators]
        if not graph.operations:
            for to, value in moved:
                to.value = value
            return
        program = self.program()
        if not may_be_taken([values[index] for index in program.donated], besides=1):  # `values`
            program = self.program(donates=False)
        made = [Value(graph.specs[slot], device, None, -1) for slot in graph.outputs]
        read = set(map(id, chain(self.sources, (source for _, source in self.moved))))
        first = [(storage, made[output]) for storage, output in self.results if id(storage) not in read]
        last = [(storage, made[output]) for storage, output in self.results if id(storage) in read]
        run_step(
            Step(
                program,
                values,
                made,
                self.pending.numbers,
                [states[index] for index in self.draws],
                Cause.SYNC,
                lambda: self.pending.lines,
                # The results of the last replay leave before the program runs, which needs their memory.
                before=stored(first),
                after=stored([*moved, *last]),
            )
        )
        live_counters.values.value += len(made)

    def _check(self, values: Sequence[Value]) -> None:
        """Raise an error if the memory has another form than at the capture."""
        device = self.pending.device
        for value, spec in zip(values, self.pending.graph.inputs, strict=True):
            if value.spec is not spec.plain or (device.spread is not None and device.placed(value) is not spec):
                raise RuntimeError(
                    f"replay: a tensor that the graph reads was {spec.dtype} of size {list(spec.size)} at the capture, "
                    f"and is now {value.spec.dtype} of size {list(value.spec.size)}, or is divided among devices in "
                    f"another way. Write to it by copy_(), or capture again."
                )


class Capture:
    """The operations that a device records from `begin` to `end`. No thread of the process can run a program then."""

    def __init__(self, device: Device, generators: Sequence[Generator], is_local: bool) -> None:
        self.device = device
        self._generators = [device.generator, *generators]
        self._hooks: list[Any] = []
        self._thread = threading.get_ident() if is_local else None  # the only one that may not transfer

    def begin(self) -> None:
        """Run what is recorded, and begin."""
        global _running
        device = self.device
        if _running is not None:
            raise RuntimeError(
                f"capture_begin: a graph is being captured on {_running.device.torch_device} already. Call "
                f"capture_end() first; of graphs that follow each other, capture one after the other."
            )
        if observers.describe_run is not None:
            raise RuntimeError("capture_begin: torch_xla.debug.plan() runs nothing, so no graph can be captured in it")
        sync_device(device)
        gc.collect()  # what is garbage would count as memory that the graph reads or writes
        with LOCK:
            values = [storage.value for storage in storages_of(device)]
            compute([each for each in values if each.buffer is None and not isinstance(each.tape, Failed)])
            self._separate()
            self._before = [(storage, storage.value) for storage in storages_of(device)]
            self._states = [generator.state for generator in self._generators]
            self._tape = device.tape
            _running = self
            observers.register("describe_run", self._refuse_run)
            events.guard(self._heard)
        self._hooks = [
            register_optimizer_step_pre_hook(_look_at_optimizer),
            register_optimizer_step_post_hook(self._look_at_state),
        ]

    def _separate(self) -> None:
        """Give each storage a value of its own, whose numbers the host does not know.

        A replay must not depend on what two storages have in common now, nor on the numbers that they hold now.
        """
        owners = dict[int, int]()
        for storage in storages_of(self.device):
            owners[id(storage.value)] = owners.get(id(storage.value), 0) + 1
        for storage in storages_of(self.device):
            value = storage.value
            is_shared = owners[id(value)] > 1
            if is_shared or type(value) is not Value or getattr(value, "contents", None) is not None:
                storage.value = own = Value(value.spec, self.device, None, -1)
                own.buffer = value.buffer
                own.shared = value.shared or is_shared

    def refuse(self, why: str) -> NoReturn:
        """Raise the error for what cannot be done in a capture."""
        raise RuntimeError(
            f"operation not permitted while a graph is captured on {self.device.torch_device} "
            f"({user_lines.text(user_lines.user_line())}): {why}, and nothing runs before the replay."
        )

    def _refuse_run(self, step: Step) -> NoReturn:
        if step.cause is Cause.READ:
            self.refuse("a value is read. Read it after a replay, or use torch.where in the place of `if`")
        self.refuse("a program is started. Call sync(), synchronize() and functions that are compiled outside of it")

    def _heard(self, event: object) -> None:
        if not isinstance(event, events.Transfer) or self._thread not in (None, threading.get_ident()):
            return
        if event.direction is Direction.TO_DEVICE:
            self.refuse(
                "values come from the host, which a replay does not read again. Make the tensor before the capture, "
                "and copy_() new values into it before a replay"
            )
        self.refuse("a value is read on the host. Read it after a replay")

    def _look_at_state(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Refuse state that an optimizer made during the capture: each replay would begin with it."""
        known = {id(storage) for storage, _ in self._before}
        for state in optimizer.state.values():
            for name, each in state.items():
                if isinstance(each, torch.Tensor) and each.device.type == "xla":
                    if id(each.untyped_storage()) not in known:
                        raise RuntimeError(
                            f"graph capture: {type(optimizer).__name__} made its state ({name!r}) during the capture, "
                            f"so each replay would make it anew. Train for one step before the capture."
                        )

    def end(self) -> CapturedGraph:
        """Return what was recorded as a graph, and leave the memory as it was at `begin`."""
        gc.collect()
        with LOCK:
            try:
                sharding_annotations.keep(self.device)
                return self._cut()
            finally:
                self.leave()

    def leave(self) -> None:
        """End the capture without a graph."""
        global _running
        if _running is not self:
            return
        with LOCK:
            for hook in self._hooks:
                hook.remove()
            events.unguard(self._heard)
            observers.register("describe_run", None)
            _running = None
            drop_recorded(self.device, stored(self._before))
            for generator, state in zip(self._generators, self._states, strict=True):
                generator.state = state
            self._before = []

    def _cut(self) -> CapturedGraph:
        tape, before = self.device.tape, {id(storage): value for storage, value in self._before}
        if tape is not self._tape:
            raise RuntimeError("capture_end: another thread has run or dropped what was recorded. Capture again.")
        owners = {id(value): storage for storage, value in self._before}
        slots: list[tuple[Any, int]] = []
        moved: list[tuple[Any, Any]] = []
        for storage in storages_of(self.device):
            value: Value = storage.value
            if value is before.get(id(storage)):
                continue
            if value.state == "pending":
                slots.append((storage, operand_slot(tape, value)))
            elif id(value) in owners:  # or another thread has uploaded it
                moved.append((storage, owners[id(value)]))
        code = tuple(tape.code)
        inputs, operations, producer = decode(code)
        outputs = [*dict.fromkeys(slot for _, slot in slots)]
        chosen = needed(operations, producer, outputs, effects=effective(operations))
        part = cut(inputs, operations, chosen, outputs)
        sources = [self._owner_of(tape.values[slot], owners) for slot in part.inputs]
        written, kept = {id(storage) for storage, _ in slots}, {id(source) for _, source in moved}
        overwritten = [index for index, each in enumerate(sources) if id(each) in written - kept]
        successor = successors(part.graph)
        donated = takers(part.graph, overwritten, successor)
        outputs = [outputs[index] for index in in_order(part.graph, donated, successor)]
        part = cut(inputs, operations, chosen, outputs)
        number = {slot: index for index, slot in enumerate(outputs)}
        results = [(storage, number[slot]) for storage, slot in slots]
        pending = replace(described(part, tape, tape.values, self.device), inputs=())  # the buffers may change
        return CapturedGraph(pending, sources, results, moved, self._generators_of(tape.draws), part.draws, donated)

    def _owner_of(self, value: Value, owners: Mapping[int, object]) -> Any:
        found = owners.get(id(value))
        if found is None:
            raise RuntimeError(
                f"capture_end: the graph reads values of size {list(value.spec.size)} that no tensor held when the "
                f"capture began. Make the tensor before the capture."
            )
        return found

    def _generators_of(self, draws: Sequence[int]) -> list[Generator]:
        """Return the generator of each draw."""
        ahead = []
        for generator, state in zip(self._generators, self._states, strict=True):
            ahead.append((generator, Generator()))
            ahead[-1][1].state = state
        found = []
        for state in draws:
            known = next((pair for pair in ahead if pair[1].state == state), None)
            if known is None:
                raise RuntimeError(
                    "capture_end: random numbers were drawn by a generator that the graph does not know, or that was "
                    "seeded during the capture. Call register_generator_state(generator) before the capture, and seed "
                    "outside of it."
                )
            known[1].draw()
            found.append(known[0])
        return found


def _look_at_optimizer(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Refuse an optimizer that counts its steps on the host: a replay would repeat the step of the capture."""
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise RuntimeError(
            f"Attempting XLA graph capture of step() for an instance of {type(optimizer).__name__} but param_groups' "
            f"capturable is False: it counts its steps on the host, which a replay does not run. Make it with "
            f"capturable=True."
        )
