"""Reads of a tensor's other attributes are reported to a listener, and hooks of nodes are counted."""

from types import FrameType
from typing import Any

import torch

from torch_xla._engine.compat.patches import autograd_observers
from torch_xla.experimental.scan import scan


def test_who_reads_what_is_not_compared_is_told_of_with_the_frame() -> None:
    seen: list[tuple[str, str]] = []

    def listener(name: str, frame: FrameType) -> None:
        seen.append((name, frame.f_code.co_name))

    x = torch.ones(2)
    before = [vars(torch.Tensor).get(name) for name in ("_version", "_base", "_cdata")]
    autograd_observers.listen(listener)
    try:
        x.add_(1)
        values = x._version, x[1:]._base is x, x._cdata
    finally:
        autograd_observers.unlisten(listener)
    here = "test_who_reads_what_is_not_compared_is_told_of_with_the_frame"
    assert seen == [(name, here) for name in ("_version", "_base", "_cdata")]
    assert values == (x._version, True, x._cdata) and len(seen) == 3  # no listener any more
    assert [vars(torch.Tensor).get(name) for name in ("_version", "_base", "_cdata")] == before


def test_listeners_come_and_go_each_by_itself() -> None:
    first: list[str] = []
    second: list[str] = []

    def one(name: str, _: Any) -> None:
        first.append(name)

    def other(name: str, _: Any) -> None:
        second.append(name)

    x = torch.ones(1)
    autograd_observers.listen(one)
    autograd_observers.listen(other)
    _ = x._version
    autograd_observers.unlisten(one)
    _ = x._version
    autograd_observers.unlisten(one)  # once more does nothing
    _ = x._version
    autograd_observers.unlisten(other)
    _ = x._version
    assert (len(first), len(second)) == (1, 3)


def test_hooks_of_nodes_are_counted_and_work() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    before, seen = autograd_observers.hooks_of_nodes(), []
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda *gradients: seen.append("hook"))
    y.grad_fn.register_prehook(lambda gradients: seen.append("before"))
    assert autograd_observers.hooks_of_nodes() >= before + 1
    y.sum().backward()
    assert seen == ["before", "hook"]


def test_hooks_by_which_a_trace_notes_where_gradients_come_from_do_not_count() -> None:
    before = autograd_observers.hooks_of_nodes()
    weight = torch.ones(2, device="xla", requires_grad=True)
    scan(lambda carry, x: (carry * weight + x, x), torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
    assert autograd_observers.hooks_of_nodes() == before
