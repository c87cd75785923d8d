"""State that a replay could miss: counters and addresses of tensors, hooks of nodes, lifetimes, threads."""

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compat.patches import autograd_observers

from .small_functions import CALLS, Case, Compiled, ones, told

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def _of_arguments(read: Callable[[torch.Tensor], Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """Return a case in which a number read from an argument changes at the sixth call."""

    def run(dev: str, compiled: Compiled) -> list[Any]:
        step = compiled(lambda x: x * float(bool(read(x))))
        return [told(step(ones(dev) if index < 6 else change(ones(dev)))) for index in range(CALLS)]

    return run


NAMES = ["shape", "_version", "_base"]
CASES["a_version_by_a_computed_name"] = _of_arguments(lambda x: getattr(x, "_ver" + "sion"), lambda x: x.mul_(1))
CASES["a_version_by_a_name_from_a_list"] = _of_arguments(lambda x: getattr(x, NAMES[1]), lambda x: x.mul_(1))
CASES["a_base_by_a_name_from_a_list"] = _of_arguments(lambda x: getattr(x, NAMES[2]) is None, lambda x: x[:])
CASES["versions_by_map"] = _of_arguments(lambda x: sum(map(getattr, [x], NAMES[1:2])), lambda x: x.mul_(1))


@case
def a_version_of_what_it_sees(dev: str, compiled: Compiled) -> list[Any]:
    seen = ones(dev)
    step = compiled(lambda x: x * float(getattr(seen, NAMES[1])))
    log = []
    for index in range(CALLS):
        if index > 5:
            seen.mul_(1)
        log.append(told(step(ones(dev))))
    return log


def _hooked(hook: Callable[[nn.Parameter, list[int]], Any]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        weight, seen, kept = nn.Parameter(ones(dev)), [], []

        def function(x: torch.Tensor) -> Any:
            weight.grad = None
            (weight * x).sum().backward()
            return weight.grad

        step, log = compiled(function), []
        for index in range(14):
            if index == 6:
                kept.append(hook(weight, seen))
            if index == 9:
                kept.pop()[1].remove()
            log.append((told(step(ones(dev))), len(seen)))
        return log

    return run


def _node(weight: nn.Parameter) -> Any:
    return torch.autograd.graph.get_gradient_edge(weight).node


CASES["a_hook_behind_the_node_of_a_leaf"] = _hooked(
    lambda weight, seen: ((node := _node(weight)), node.register_hook(lambda *_: seen.append(1)))
)
CASES["a_hook_before_the_node_of_a_leaf"] = _hooked(
    lambda weight, seen: ((node := _node(weight)), node.register_prehook(lambda given: tuple(3 * g for g in given)))
)


@case
def a_hook_of_a_node_inside(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(ones(dev))

    def function(x: torch.Tensor) -> Any:
        weight.grad = None
        product = weight * x
        product.grad_fn.register_hook(  # type: ignore[union-attr]
            lambda made, _: tuple(None if each is None else each * 2 for each in made)
        )
        product.sum().backward()
        return weight.grad

    step = compiled(function)
    return [told(step(ones(dev) * index)) for index in range(CALLS)]


@case
def a_gradient_given_to_what_requires_none(dev: str, compiled: Compiled) -> list[Any]:
    weight, frozen = nn.Parameter(ones(dev)), nn.Parameter(ones(dev), requires_grad=False)
    optimizer = torch.optim.SGD([weight, frozen], lr=0.5)

    def function(x: torch.Tensor) -> None:
        (weight * x + frozen).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step, log = compiled(function), []
    for index in range(10):
        if index == 6:
            frozen.grad = torch.full((2,), 4.0, device=dev)
        step(ones(dev))
        log.append(told([weight, frozen]))
    return log


@case
def a_gradient_of_an_argument(dev: str, compiled: Compiled) -> list[Any]:
    step, log = compiled(lambda x: x * (2.0 if x.grad is None else 3.0)), []
    for index in range(10):
        x = ones(dev)
        if index > 5:
            x.grad = ones(dev)
        log.append(told(step(x)))
    return log


@case
def hooks_of_what_is_saved(dev: str, compiled: Compiled) -> list[Any]:
    weight, seen = nn.Parameter(ones(dev)), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return tensor

    def function(x: torch.Tensor) -> Any:
        weight.grad = None
        (weight * x).exp().sum().backward()
        return weight.grad

    step, log = compiled(function), []
    for index in range(CALLS):
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks if index > 5 else contextlib.nullcontext():
            log.append((told(step(ones(dev))), len(seen)))
    return log


@case
def arguments_die_when_their_caller_lets_go(dev: str, compiled: Compiled) -> list[Any]:
    step, log = compiled(lambda x: x.add_(1).sum()), []
    for _ in range(12):
        x = ones(dev)
        alive = weakref.ref(x)
        log.append(told(step(x)))
        del x
        log.append(alive() is None)
    return log


@case
def results_die_when_nobody_holds_them(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda x: [x + 1])
    return [weakref.ref(step(ones(dev))[0])() is None for _ in range(12)]


@case
def arguments_are_the_callers_to_keep(dev: str, compiled: Compiled) -> list[Any]:
    state = torch.zeros(2, device=dev)
    step = compiled(lambda x: state.copy_(x) * 2)
    kept = []
    for index in range(12):
        kept.append(ones(dev) * index)
        step(kept[-1])
        state.add_(5)
    return told(kept)  # type: ignore[no-any-return]


@case
def two_threads_in_one_function(dev: str, compiled: Compiled) -> list[Any]:
    state, lock = torch.zeros(2, device=dev), threading.Lock()
    step = compiled(lambda x: state.add_(x))

    def work() -> None:
        for _ in range(10):
            with lock:
                step(ones(dev))

    for _ in range(5):
        step(ones(dev))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told(state)]


@case
def two_threads_in_one_pure_function(dev: str, compiled: Compiled) -> list[Any]:
    step, log = compiled(lambda x: x * 2 + 1), []
    for _ in range(5):
        step(ones(dev))

    def work(first: int) -> None:
        log.extend(
            told(step(ones(dev) * number)) == told(ones("cpu") * number * 2 + 1) for number in range(first, first + 15)
        )

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return log


@case
def a_thread_reads_what_another_replays(dev: str, compiled: Compiled) -> list[Any]:
    state, done, torn = torch.zeros(2, device=dev), threading.Event(), []
    step = compiled(lambda x: state.add_(x))

    def read() -> None:
        while not done.is_set():
            values = state.tolist()
            torn.extend([values] if values[0] != values[1] else [])

    thread = threading.Thread(target=read)
    for nth in range(30):
        if nth == 5:  # replayed from here on: a read in the middle of a call would keep it from being learnt
            thread.start()
        step(ones(dev))
    done.set()
    thread.join()
    return [torn if dev == "xla" else [], told(state)]  # the CPU writes while others read


# Cases that are replayed at least once; the others are recorded, for a reason.
REPLAYED = {
    "a_hook_behind_the_node_of_a_leaf", "a_hook_before_the_node_of_a_leaf", "hooks_of_what_is_saved",
    "arguments_die_when_their_caller_lets_go", "results_die_when_nobody_holds_them",
    "arguments_are_the_callers_to_keep", "a_thread_reads_what_another_replays", "two_threads_in_one_function",
    "two_threads_in_one_pure_function", "a_gradient_given_to_what_requires_none", "a_gradient_of_an_argument",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_replayed_function_does_what_it_does_on_the_cpu(name: str) -> None:
    expected = CASES[name]("cpu", lambda function: function)
    before = met.counter_value("ReplayedStep") or 0
    assert CASES[name]("xla", lambda function: torch_xla.compile(function, replay=True)) == expected
    assert ((met.counter_value("ReplayedStep") or 0) > before) == (name in REPLAYED)


def test_an_attribute_of_the_programs_own_may_have_any_name() -> None:
    class Layer:
        def __init__(self) -> None:
            self._base = 2.0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self._base

    step = torch_xla.compile(Layer(), replay=True)
    for _ in range(5):
        assert step(ones("xla")).tolist() == [2, 2]
    assert step.is_replayed, step.why_recorded


def test_a_watch_leaves_the_class_of_tensors_as_it_was() -> None:
    told = {"_version", "_base", "_cdata"}
    assert not told & set(vars(torch.Tensor))
    heard: list[str] = []
    listener = lambda name, _: heard.append(name)  # noqa: E731
    autograd_observers.listen(listener)
    try:
        assert torch.ones(2).mul_(1)._version == 1 and torch.ones(2)[:]._base is not None
    finally:
        autograd_observers.unlisten(listener)
    assert heard == ["_version", "_base"]
    assert not told & set(vars(torch.Tensor))
    assert torch.ones(2)._version == 0
