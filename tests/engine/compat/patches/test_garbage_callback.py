"""Garbage collection loses no interrupt."""

import _thread
import functools
import gc
import operator
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest
import torch

import torch_xla
from torch_xla._engine.compat.patches import garbage_callback


class _Sends:
    """Interrupts the main thread as Ctrl-C does, from C: so the next function of Python's is where it is raised."""

    send = staticmethod(_thread.interrupt_main)
    start = property(operator.methodcaller("send"))


@contextmanager
def interrupts_at_collections() -> Iterator[None]:
    """An interrupt comes as each collection begins, before all other callbacks. None is collected by itself.

    Hypothesis measures collections in Python, where interrupts disappear: its callback is set aside.
    """
    sends = functools.partial(getattr, _Sends())
    before = list(gc.callbacks)
    gc.disable()
    gc.callbacks[:] = [sends, *(each for each in before if not _module(each).startswith("hypothesis"))]
    try:
        yield
    finally:
        gc.callbacks[:] = before
        gc.enable()


def _module(callback: object) -> str:
    return getattr(callback, "__module__", None) or ""


def replayed() -> object:
    x = torch.ones(2).to("xla")
    function = torch_xla.compile(lambda: (x * 2).sum(), replay=True)
    for _ in range(6):
        function()
    assert function.is_replayed
    return function


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_an_interrupt_during_a_collection_is_raised_behind_it(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    function, came = replayed(), 0
    gc.collect()  # an interrupt in a finalizer of an earlier test would be ignored by Python
    for _ in range(20):
        with interrupts_at_collections():
            try:
                gc.collect(generation)
            except KeyboardInterrupt:
                came += 1
    assert function is not None and (came, ignored) == (20, [])


def test_no_callback_of_ours_or_of_jax_is_written_in_python() -> None:
    function = replayed()
    ours = [each for each in gc.callbacks if getattr(each, "__module__", "").startswith(("torch_xla", "jax"))]
    assert not any(isinstance(each, types.FunctionType) for each in ours), ours
    assert function is not None


def test_jax_still_releases_what_it_holds() -> None:
    torch.ones(2, device="xla")
    jax.jit(lambda x: x + 1)(1.0)
    gc.collect()
    assert sum(isinstance(each, functools.partial) for each in gc.callbacks) >= 1


def test_a_function_is_called_behind_each_full_collection_in_the_main_thread() -> None:
    came: list[bool] = []

    def note() -> None:
        came.append(threading.current_thread() is threading.main_thread())

    garbage_callback.after_full_collections(note)
    try:
        gc.collect(0), gc.collect(1)
        before = len(came)
        gc.collect()
        assert came[before:] == [True]
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        assert came[before:] == [True, True]
    finally:
        garbage_callback._after.functions.remove(note)


def test_what_it_raises_reaches_the_program() -> None:
    def fails() -> None:
        garbage_callback._after.functions.remove(fails)
        raise KeyboardInterrupt

    garbage_callback.after_full_collections(fails)
    with pytest.raises(KeyboardInterrupt):
        gc.collect()


def test_a_replay_that_nobody_asked_for_lets_go_of_a_model_when_garbage_is_collected() -> None:
    models = [torch.nn.Linear(2, 2).to("xla")]
    x = torch.ones(2).to("xla")

    @torch_xla.compile
    def function() -> torch.Tensor:
        return models[0](x).sum().detach() if models else x.sum()

    for _ in range(24):
        function()
    assert function.is_replayed
    there = weakref.ref(models.pop())
    gc.collect()
    gc.collect()  # what is let go of behind the first one may be garbage itself
    assert there() is None
