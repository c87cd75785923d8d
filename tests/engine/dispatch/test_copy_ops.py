"""Operators that copy from a tensor wherever it is, in each way of running."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.dispatch import copy_ops
from torch_xla.experimental import eager_mode_context

aten = torch.ops.aten
HOST = torch.tensor([3.0, -1.0, 0.5, 2.0])
NUMBER = torch.tensor(7.0)
Case = Callable[[torch.Tensor, torch.device], Any]


def _foreach(t: torch.Tensor, to: torch.device) -> Any:
    targets = [t * 1, torch.zeros(4), t * 3]
    torch._foreach_copy_(targets, [HOST, t + 1, NUMBER])
    return targets


# Functions of a tensor and of the device that it is on.
CASES: dict[str, Case] = {
    "copy_": lambda t, to: t.copy_(HOST),
    "copy_ of a number": lambda t, to: t.copy_(NUMBER),
    "copy_ of one element": lambda t, to: t.copy_(torch.ones(1)),
    "copy_ of another dtype": lambda t, to: t.copy_(torch.arange(4)),
    "copy_ of what the host computes": lambda t, to: t.copy_(HOST * 2 + 1).sin(),
    "copy_ into what is computed": lambda t, to: (t * 2).copy_(HOST) + 1,
    "copy_ into a slice": lambda t, to: (t[:2].copy_(torch.ones(2)), t)[1],
    "copy_ into a view": lambda t, to: (t.view(2, 2).copy_(HOST.view(2, 2)), t)[1],
    "copy_ to the host": lambda t, to: torch.zeros(4).copy_(t),
    "copy_ of what is computed to the host": lambda t, to: torch.zeros(4).copy_(t * 2) + 1,
    "copy_ without a wait": lambda t, to: t.copy_(HOST, non_blocking=True),
    "copy_ of what is there without a wait": lambda t, to: t.copy_(t * 2, True),
    "copy": lambda t, to: aten.copy(t, HOST),
    "copy without a wait": lambda t, to: [aten.copy(t, HOST, True), aten.copy(t, t.int(), non_blocking=True)],
    "copy, then more": lambda t, to: aten.copy(t * 2, HOST).sin() + 1,
    "copy that broadcasts": lambda t, to: aten.copy(t, torch.ones(1)),
    "copy that casts": lambda t, to: aten.copy(t.int(), HOST),
    "copy of a number": lambda t, to: aten.copy(t, NUMBER),
    "copy to the host": lambda t, to: aten.copy(HOST, t),
    "copy of what is computed to the host": lambda t, to: aten.copy(HOST, t * 2) + 1,
    "slice_scatter": lambda t, to: torch.slice_scatter(t, torch.ones(2), 0, 1, 3),
    "diagonal_scatter": lambda t, to: torch.diagonal_scatter(t.view(2, 2), torch.ones(2)),
    "setitem": lambda t, to: (t.__setitem__(slice(1, 3), torch.ones(2)), t)[1],
    "_foreach_copy": lambda t, to: aten._foreach_copy([t, t], [HOST, t * 2]),
    "_foreach_copy_": _foreach,
    "_foreach_copy without a wait": lambda t, to: aten._foreach_copy([t, t], [t * 2, t.int()], True),
    "_foreach_copy_ without a wait": lambda t, to: [torch._foreach_copy_([t], [t * 2], True), t],
    # Other allowed mixtures: numbers on the CPU, and indices.
    "0-dim operands": lambda t, to: [t + NUMBER, NUMBER - t, t**NUMBER, torch.maximum(NUMBER, t), t == NUMBER],
    "0-dim in place": lambda t, to: t.mul_(NUMBER).add_(1),
    "0-dim in fills": lambda t, to: [t.masked_fill(t > 1, NUMBER), torch.where(t > 1, NUMBER, t)],
    "0-dim in fills in place": lambda t, to: t.masked_fill_(t > 1, NUMBER),
    "0-dim condition": lambda t, to: torch.where(torch.tensor(True), t, t * 2),
    "0-dim with out": lambda t, to: torch.add(t, NUMBER, out=torch.empty(4, device=to)),
    "indices": lambda t, to: [t[torch.tensor([2, 0])], t[torch.tensor([True, False, True, False])]],
    "indices of what is computed": lambda t, to: (t * 2)[torch.tensor([2, 0])],
    "index_put_": lambda t, to: t.index_put_((torch.tensor([2, 0]),), NUMBER),
    "masks": lambda t, to: (t.__setitem__(torch.tensor([True, False, True, False]), NUMBER), t)[1],
}
WAYS = ("recorded", "eager", "replay", "openxla", "openxla, one graph")


def _run(case: Case, device: str, way: str) -> Any:
    to = torch.device(device)
    run: Any = lambda t: case(t, to)  # noqa: E731
    if way == "replay":
        run = torch_xla.compile(run, replay=True)
    elif way.startswith("openxla"):
        run = torch.compile(run, backend="openxla", fullgraph=way != "openxla")
    with eager_mode_context(way == "eager"):
        for _ in range(5 if way == "replay" else 1):
            t = torch.arange(4.0).to(device)
            result = run(t)
    return torch.utils._pytree.tree_map(lambda x: (x.device.type, x.cpu()), (result, t))


@pytest.mark.filterwarnings("ignore:.*a graph has no tensor on an xla device")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_sources_and_numbers_of_the_host_mix_in_each_way_of_running(name: str, way: str) -> None:
    torch._dynamo.reset()
    found, expected = _run(CASES[name], "xla", way), _run(CASES[name], "cpu", "recorded")
    found, expected = (torch.utils._pytree.tree_leaves(each) for each in (found, expected))
    tensors = [(a, b) for a, b in zip(found, expected, strict=True) if isinstance(a, torch.Tensor)]
    for ours, theirs in tensors:
        torch.testing.assert_close(ours, theirs)


def test_results_are_where_what_is_copied_into_is() -> None:
    t = torch.ones(4, device="xla")
    assert aten.copy(t, HOST).device.type == "xla" and aten.copy(HOST, t).device.type == "cpu"
    copies = aten._foreach_copy([t, torch.zeros(4)], [HOST, t])
    assert [each.device.type for each in copies] == ["xla", "cpu"]
    assert torch.slice_scatter(HOST, t[:2], 0, 0, 2).tolist() == [1, 1, 0.5, 2]
    assert set(copy_ops.KERNELS) == {
        "copy", "slice_scatter", "select_scatter", "diagonal_scatter", "_foreach_copy", "_foreach_copy_"
    }  # fmt: skip


def test_gradients_reach_a_source_on_the_host() -> None:
    def step(host: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (t.clone().copy_(host * 3) * t).sum()

    for run in (step, torch.compile(step, backend="openxla")):
        host = torch.ones(4, requires_grad=True)
        run(host, torch.arange(4.0).to("xla")).backward()
        assert host.grad is not None and host.grad.tolist() == [0, 3, 6, 9]


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda t: t + HOST,
    "add_": lambda t: t.add_(HOST),
    "into the host": lambda t: torch.zeros(4).add_(t),
    "cat": lambda t: torch.cat([t, HOST]),
    "where": lambda t: torch.where(HOST > 0, t, t),
    "masked_fill": lambda t: t.masked_fill(HOST > 0, 1.0),
    "gather": lambda t: t.gather(0, torch.tensor([1])),
    "linear": lambda t: torch.nn.functional.linear(t, HOST[None]),
    "mse_loss": lambda t: torch.nn.functional.mse_loss(t, HOST),
    "equal": lambda t: torch.equal(t, HOST),
}


@pytest.mark.parametrize("way", ["recorded", "eager", "replay", "openxla"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_so_in_each_way_of_running(name: str, way: str) -> None:
    torch._dynamo.reset()
    run: Any = REFUSED[name]
    if way == "replay":
        run = torch_xla.compile(run, replay=True)
    elif way == "openxla":
        run = torch.compile(run, backend="openxla")
    with (
        eager_mode_context(way == "eager"),
        pytest.raises(RuntimeError, match="(?s)Expected all tensors to be on the same device.*(cpu|xla:0)"),
    ):
        run(torch.arange(4.0).to("xla"))


def test_a_tensor_of_the_host_that_was_refused_is_what_it_was() -> None:
    host, t = torch.ones(4), torch.zeros(4, device="xla")
    with pytest.raises(RuntimeError, match=r'"xla:0" to a storage on different device "cpu".*Move the source with'):
        t.set_(host)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        t + host
    assert t.copy_(host).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 3])
def test_lists_of_unlike_lengths_are_refused_where_the_cpu_reads_beyond_them(count: int) -> None:
    left, right = ([torch.ones(3, device="xla")] * many for many in (2, count))
    for copy in (torch.ops.aten._foreach_copy, torch._foreach_copy_):
        with pytest.raises(RuntimeError, match=f"lists must have the same number of tensors, got 2 and {count}"):
            copy(left, right)
