"""Writes of compiled functions to elements that are shown twice: refused or right, as outside of graphs."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.twins import outcome
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compiled.dynamo.overlapping_writes import overlapping_writes, repeats

F = torch.nn.functional

# Dynamo puts some in an error of its own.
_REFUSAL = "of the (input tensor and the )?written-to tensor refers? to a single memory location"

Call = Callable[[torch.Tensor], Any]


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return (x * 1)[:1].expand(2, 3)


WRITES: dict[str, Call] = {
    "one number": lambda x: _expanded(x).fill_(2),
    "zero": lambda x: _expanded(x).zero_(),
    "a number through a mask": lambda x: _expanded(x).masked_fill_(x > 1, 7.0),
    "a number by an index": lambda x: _expanded(x).index_fill_(0, torch.tensor([0], device=x.device), 3.0),
    "add_": lambda x: _expanded(x).add_(1),
    "iadd": lambda x: _expanded(x).__iadd__(x),
    "setitem": lambda x: _expanded(x).__setitem__((slice(None), 0), x[:, 0]),
    "copy_": lambda x: _expanded(x).copy_(x),
    "inplace=True": lambda x: F.relu(_expanded(x), inplace=True),
    "inplace, by place": lambda x: F.hardtanh(_expanded(x), -1.0, 1.0, True),
    "relu_": lambda x: torch.relu_(_expanded(x)),
    "list": lambda x: torch._foreach_mul_([_expanded(x)], [x]),
    "index_add_": lambda x: _expanded(x).index_add_(0, torch.tensor([0], device=x.device), x[:1]),
    "of a part that is read": lambda x: (x := x * 1).view(-1)[1:5].add_(x.view(-1)[:4]),
    "of the transpose": lambda x: (x := x[:, :2] * 1).mul_(x.t()),
    "of itself": lambda x: (x := x * 1).mul_(x),
    "of another part": lambda x: (x := x * 1)[0].add_(x[1]),
    "out= of a part": lambda x: (x := x.flatten() * 1, torch.add(x[:4], 1, out=x[1:5]))[1],
    "setitem of a part": lambda x: (x := x.flatten() * 1).__setitem__(slice(0, 4), x[1:5]),
    "random": lambda x: _expanded(x).random_(),
}

# Results that the CPU writes, or writes into memory that it takes for contiguous, are refused here alike.
OUTS: dict[str, Call] = {
    "mul": lambda x: torch.mul(x, x, out=_expanded(x)),
    "topk": lambda x: torch.topk(x, 3, out=(_expanded(x), torch.zeros(2, 3, dtype=torch.long, device=x.device))),
    "argmax": lambda x: torch.argmax(x, 1, out=torch.zeros(1, dtype=torch.long, device=x.device).expand(2)),
    "cummax": lambda x: torch.cummax(x, 1, out=(_expanded(x), torch.zeros(2, 3, dtype=torch.long, device=x.device))),
    "mv": lambda x: torch.mv(x, x[0], out=torch.zeros(1, device=x.device).expand(2)),
    "histc": lambda x: torch.histc(x, 4, 0.0, 5.0, out=torch.zeros(1, device=x.device).expand(4)),
    "sum": lambda x: torch.sum(x, 1, out=torch.zeros(1, device=x.device).expand(2)),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        x[:, :2], x[:, :2], upper=True, out=torch.zeros(1, device=x.device).expand(2, 2)
    ),
    "nonzero": lambda x: torch.nonzero(x, out=torch.zeros(1, dtype=torch.long, device=x.device).expand(6, 2)),
}


def _numbers() -> torch.Tensor:
    return torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.5, 5.0]])


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_in_place_does_as_on_the_cpu(name: str, way: str) -> None:
    results: list[torch.Tensor] = []
    theirs = outcome(lambda device: results.append(WRITES[name](_numbers())), "cpu")
    with made_to_run(way, WRITES[name]) as run:
        ours = outcome(lambda device: results.append(run(_numbers().to(device))), "xla")
    assert (theirs is None) is (ours is None) and (ours is None or re.search(_REFUSAL, str(ours)))
    if theirs is None:
        assert results[1].tolist() == results[0].tolist() and results[1].stride() == results[0].stride()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OUTS)
def test_an_expanded_out_is_refused(name: str, way: str) -> None:
    with (
        made_to_run(way, OUTS[name]) as run,
        pytest.raises(Exception, match=_REFUSAL),
    ):
        run(_numbers().to("xla"))


def test_sizes_that_change_and_graphs_inside() -> None:
    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        inside: torch.Tensor = torch.utils.checkpoint.checkpoint(WRITES["zero"], x, use_reentrant=False)
        return inside.sum() + x.sum()

    assert torch.compile(checkpointed, backend="openxla")(_numbers().to("xla")).item() == 15.5
    grown = torch.compile(lambda x: (x * 1)[:1].expand(x.shape).fill_(2), backend="openxla", dynamic=True)
    for length in (3, 4, 5):
        assert grown(torch.ones(length, 2, device="xla")).tolist() == [[2.0, 2.0]] * length


def test_other_writes_stay_one_operation() -> None:
    torch_xla.debug.metrics.clear_counters()
    run = torch.compile(lambda x: (x.expand(4, 2, 3) + x).add_(1).relu_(), backend="openxla")
    assert run(_numbers().to("xla")).shape == (4, 2, 3)
    assert "DynamoGraphByOperator" not in torch_xla.debug.metrics.counter_names()


def test_what_repeats() -> None:
    base = torch.ones(3)
    assert repeats(base.expand(2, 3)) and not repeats(base.expand(1, 3)) and not repeats(base[::2]) and not repeats(3)
    module = torch.fx.symbolic_trace(lambda x: x.expand(2, 3).add_(1))
    assert not overlapping_writes(module)  # nothing is known of its values


TRANSFORMED: dict[str, Call] = {
    "vmap": lambda x: torch.func.vmap(lambda row: (row * 1).add_(row[:1]))(x),
    "grad": lambda x: torch.func.grad(lambda y: (y * 1).mul_(y).sum())(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda y: (y * 2).add_(y))(x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_tensors_inside_a_transformation_have_no_memory_to_compare(name: str) -> None:
    theirs = TRANSFORMED[name](_numbers())
    assert torch.equal(torch.compile(TRANSFORMED[name], backend="openxla")(_numbers().to("xla")).cpu(), theirs)
