"""A compiled function, opened: the operations inside compute what the whole does."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
from torch_xla._engine.compile import jax_function
from torch_xla._engine.compile.inlining import inlined
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.ir.verify_graph import verify
from torch_xla._engine.step import sync
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.step.step import Step
from torch_xla._engine.tensor.random_state import keys_of


@pytest.fixture(autouse=True)
def compilations_start_anew() -> Iterator[None]:
    torch_xla.sync()
    torch._dynamo.reset()
    clear_schedules()
    yield
    torch_xla.sync()


def runs(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Graph, list[Any], list[Any], Any]]:
    """The graph, inputs, numbers and random keys of each program that `call` runs."""
    found: list[Any] = []
    run = sync.run_step

    def noted(step: Step, ready: Any = None) -> None:
        keys = keys_of(step.draws) if step.draws else None
        arrays = [np.array(value.buffer) for value in step.inputs]
        found.append((step.program.graph, arrays, list(step.numbers), keys))
        run(step, ready)

    monkeypatch.setattr(sync, "run_step", noted)
    call()
    torch_xla.sync(wait=True)
    monkeypatch.undo()
    return found


def results(graph: Graph, arrays: list[Any], numbers: list[Any], keys: Any) -> list[np.ndarray]:
    floats, ints = jax_function.by_type(graph, range(len(numbers)))
    vectors = [np.array([numbers[i] for i in each]) for each in (floats, ints) if each]
    with jax.enable_x64(True):
        program = jax.jit(jax_function.as_function(graph, numbers, floats, ints))
        return [np.asarray(each) for each in program(*arrays, *vectors, *([] if keys is None else [keys]))]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.inner(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.max_pool2d(F.relu(self.norm(self.one(x))), 2), 0.5).sum((2, 3))


def mixed(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    """Compute with promotion, results of several kinds, constants and uninitialised memory."""
    values, places = x.sort(-1)
    one, two, *_ = x.unbind(0)
    filled = torch.empty(3, device=x.device).fill_(2)
    return (
        x * i + 2,
        i / 3 + True,
        values[0] - places[1],
        torch.stack([one, two]).double().cumsum(0),
        torch.arange(5, device=x.device) * 0.5 + torch.zeros(5, device=x.device),
        filled * torch.full((3,), -0.0, device=x.device),
        torch.split(x, [1, 2], 0)[1] ** 2,
        (x > i).any(-1),
        torch.var_mean(x, 0)[1],
    )


def drops(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(x, 0.5) + 1, 0.5) + torch.bernoulli(x / 2)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]], bool]] = {
    "attention": (Attention(), lambda: (torch.randn(2, 5, 8),), True),
    "convolutions": (Convolutions(), lambda: (torch.randn(2, 2, 6, 6),), True),
    "embedding": (nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4)), lambda: (torch.arange(6),), True),
    "mixed": (mixed, lambda: (torch.randn(3, 4), torch.arange(4)), False),
    "draws": (drops, lambda: (torch.ones(40),), False),
    "foreach": (lambda x: torch._foreach_mul([x, x + 1], 2.0), lambda: (torch.ones(3),), False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_inside_computes_what_the_whole_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called, arguments, differentiated = CASES[case]
    called = called.to("xla") if isinstance(called, nn.Module) else called
    compiled = torch.compile(called, backend="openxla")
    torch.manual_seed(0)
    inputs = [each.to("xla") for each in arguments()]
    torch_xla.sync(wait=True)

    def call() -> None:
        made = compiled(*inputs)
        if differentiated:
            made.square().sum().backward()

    opened = 0
    for graph, *given in runs(call, monkeypatch):
        whole = inlined(graph)
        verify(whole.graph)
        opened += len(whole.graph.operations) > len(graph.operations)
        assert not any(str(operation.plan.op).startswith("compiled::") for operation in whole.graph.operations)
        assert whole.graph.draws == graph.draws and whole.graph.number_types == graph.number_types
        assert [graph.operations[index] for index in dict.fromkeys(whole.origin)] == list(graph.operations)
        for found, expected in zip(results(whole.graph, *given), results(graph, *given), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                found.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True
            )
    assert opened


def test_a_graph_of_single_operations_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="xla")
    ((graph, *_),) = runs(lambda: (x + 1) * 2, monkeypatch) or [(None,)]
    assert inlined(graph).graph is graph


def test_sizes_that_are_known_at_run_time_only_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x.sum(0) * x.shape[0], backend="openxla", dynamic=True)
    x = torch.randn(5, 2).to("xla")
    for graph, *_ in runs(lambda: compiled(x), monkeypatch):
        whole = [operation for operation in graph.operations if str(operation.plan.op).startswith("compiled::")]
        assert [
            operation
            for operation in inlined(graph).graph.operations
            if operation.plan in [each.plan for each in whole]
        ] == whole
