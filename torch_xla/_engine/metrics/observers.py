"""Observers: what rooms above ask to be called for, in one place.

A lower room cannot import the room that wants to look, so that room registers a function here, by the name of a slot.
A slot without an observer is `None`; to ask costs the hot path one attribute. `events` is for what happened:
an observer sees what is about to happen, and most of them change it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .counters import count
from .samples import metric


class Observers:
    """One slot for each place of the engine that something above may observe."""

    __slots__ = (
        "before_new_program",
        "describe_run",
        "divide_inputs",
        "explain_memory",
        "inspect_step",
        "look_at_call",
        "name_buffers",
        "run_call",
        "watch_node",
    )

    # step/executor.py: given a step that is about to run, returns the buffers of its results in the place of the run.
    describe_run: Callable[[object], Sequence[object]] | None
    # step/sync.py: given a schedule and its tape, shards inputs of the schedule; returns whether it sharded any.
    divide_inputs: Callable[[object, object], bool] | None
    # step/sync.py: given a schedule and its tape; what it returns is called when the step has started.
    inspect_step: Callable[[object, object], Callable[[], None]] | None
    # step/memory_admission.py: given a program, or None, and its numbers, returns lines for an out-of-memory error.
    explain_memory: Callable[[object, Sequence[float | int]], str] | None
    # compile/program_cache.py: called before a program is made, when settings that came late take effect.
    before_new_program: Callable[[], None] | None
    # metrics/events.py: given buffers, returns the user's names of them.
    name_buffers: Callable[[Sequence[object]], tuple[str, ...]] | None
    # lowering/fx_graphs/interpreter.py: given a node of a graph, its arguments and its result.
    watch_node: Callable[[object, object, object], None] | None
    # dispatch/recording_kernel.py: given the plan and the operands of a call that is about to be recorded.
    look_at_call: Callable[[object, object], None] | None
    # dispatch/recording_kernel.py: runs a call in the place of recording it (eager mode).
    run_call: Callable[..., object] | None

    def __init__(self) -> None:
        for slot in self.__slots__:
            setattr(self, slot, None)

    def register(self, slot: str, observer: Callable[..., object] | None) -> Callable[..., Any] | None:
        """Make `observer` the one of this slot, `None` to have none; return the one before."""
        before: Callable[..., Any] | None = getattr(self, slot)
        setattr(self, slot, observer)
        return before

    @contextmanager
    def registered(self, slot: str, observer: Callable[..., object]) -> Iterator[None]:
        """Return a block in which `observer` is the one of this slot."""
        before = self.register(slot, observer)
        try:
            yield
        finally:
            self.register(slot, before)


observers = Observers()


def count_compile(seconds: float) -> None:
    """Count a program that was made: compiled, or read from disk, so that a second process reports the same."""
    metric("CompileTime" if observers.run_call is None else "EagerOpCompileTime").add(int(seconds * 1e9))
    count("UncachedCompile")
    count("CreateCompileHandles")
