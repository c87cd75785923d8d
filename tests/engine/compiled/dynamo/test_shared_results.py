"""Results of a compiled function that share memory on the CPU share it here: a write to one is seen in the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compiled.dynamo.host_device_split import split
from torch_xla._engine.compiled.dynamo.shared_results import shared_views
from torch_xla._engine.compiled.loops.loop_bodies import pure_graph

WEIGHT = torch.nn.Parameter(torch.arange(4.0))


def _written_through_out(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.zeros(5, 5, device=x.device)
    torch.mul(x, 2, out=made[1:4, :4])  # Dynamo ends the graph here, whose results are both
    return made, made + 1


def _with_a_gradient(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, s = x * WEIGHT.to(x.device), x > 0
    return y.sum(), s, s.view(-1), y.detach(), y.detach().t()


PROGRAMS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "a view and its base": lambda x: ((y := x * 2), y.view(-1)),
    "parts and the whole": lambda x: ((y := x * 2)[0], y[1:], y),
    "parts that overlap": lambda x: ((y := x * 2)[:2], y[1:]),
    "two views": lambda x: ((y := x + 1).t(), y.expand(2, 3, 4)),
    "detached": lambda x: ((y := x * 2).detach(), y),
    "of complex numbers": lambda x: ((y := torch.complex(x, x)), y.real, y.conj()),
    "another dtype": lambda x: ((y := x + 1), y.view(torch.int32)),
    "written before": lambda x: ((y := (x + 1).add_(1))[1:].mul_(2), y),
    "parts of a list": lambda x: ((y := x + 1).split(2)[0], y.unbind()[1]),
    "apart": lambda x: (x * 2).chunk(2, 1),
    "with a gradient": _with_a_gradient,
    "written through out=": _written_through_out,
}


def _written(results: tuple[torch.Tensor, ...]) -> list[Any]:
    """Write to each of the results in turn, and say what all of them show then."""
    seen = []
    for place, result in enumerate(results):
        if result.requires_grad or 0 in result.stride():
            continue
        result.copy_(torch.full(result.shape, place % 2 if result.dtype is torch.bool else 100 + place))
        seen.append([each.tolist() for each in results])
    return seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_to_one_result_is_seen_in_the_others(name: str, way: str) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    theirs = _written(PROGRAMS[name](x))
    with made_to_run(way, PROGRAMS[name]) as run:
        for _ in range(4):
            ours = run(x.to("xla"))
        assert _written(ours) == theirs


@pytest.mark.parametrize("way", WAYS)
def test_an_expanded_result_shows_its_elements_again(way: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2)[:1].expand(3, 4), x.sum(1).expand(2, 2, 3).transpose(0, 2)

    x = torch.arange(12.0).reshape(3, 4)
    with made_to_run(way, program) as run:
        for _ in range(4):
            ours = run(x.to("xla"))
    for one, other in zip(ours, program(x), strict=True):
        assert one.tolist() == other.tolist() and one.stride() == other.stride()
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            one.add_(1)


def test_sizes_may_change() -> None:
    run = torch.compile(PROGRAMS["a view and its base"], backend="openxla", dynamic=True, fullgraph=True)
    for length in (3, 5, 4):
        whole, flat = run(torch.ones(length, 2, device="xla"))
        flat[1] = 7
        assert whole.shape == (length, 2) and whole[0].tolist() == [2.0, 7.0]


def _graph(function: Callable[..., Any]) -> Any:
    return pure_graph(function, [torch.arange(12.0).reshape(3, 4).to("xla")])


def test_what_shares_no_element_is_a_result_of_the_operation() -> None:
    def views(name: str) -> list[str]:
        nodes = list(_graph(PROGRAMS[name]).graph.nodes)
        found = shared_views(nodes[-1].args[0], {node for node in nodes if node.op == "call_function"})
        return [str(node.target) for node in found]

    assert views("apart") == []  # though the memory of one lies between that of the other
    assert views("parts that overlap") == ["aten.slice.Tensor"] * 2
    assert views("parts of a list")[0] == "aten.split_with_sizes.default"


def test_only_what_the_user_sees_is_shown_so() -> None:
    graph = _graph(PROGRAMS["a view and its base"])
    assert [len(split(graph, "forward", visible).outputs) for visible in (0, 1, 2, None)] == [2, 2, 1, 1]


OF_VALUES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "mask": lambda x: ((y := x[x > 5]), y.view(-1), y[1:]),
    "mask, written": lambda x: ((y := x[x > 5]), y.unsqueeze(0).add_(10)),
    "nonzero": lambda x: ((y := x.nonzero()), y.t()),
    "where": lambda x: ((y := torch.where(x > 5))[0], y[1], y[0].view(-1)),
    "unique": lambda x: ((y := torch.unique(x % 3)), y.view(1, -1)),
    "repeats": lambda x: ((y := torch.repeat_interleave(x, (x[:, 0] > 3).int() + 1, dim=0)), y.flatten()),
    "a number": lambda x: ((y := torch.ones(int(x.sum().item()) // 10, 2, device=x.device)), y.view(-1)),
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_results_whose_sizes_come_of_values_are_shared(name: str) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        run = torch.compile(OF_VALUES[name], backend="openxla", fullgraph=True)
        for _ in range(2):
            assert _written(run(x.to("xla"))) == _written(OF_VALUES[name](x))
