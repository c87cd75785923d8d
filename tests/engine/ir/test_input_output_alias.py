"""The outputs that replace inputs."""

import pytest
import torch

import torch_xla
from torch_xla._engine.ir.input_output_alias import in_order, successors
from torch_xla._engine.step.step import Schedule
from torch_xla._engine.tensor.device import device_for


def last_schedule() -> Schedule:
    torch_xla.sync()
    return device_for(None).last_schedule


def pairs(schedule: Schedule) -> list[tuple[int, int]]:
    """Inputs and outputs that share memory, as JAX pairs them: the first of a form with the first."""
    assert schedule.program is not None
    graph = schedule.cut.graph
    free = list(enumerate(graph.outputs))
    found = []
    for index in schedule.program.donated:
        form = graph.inputs[index].size, graph.inputs[index].dtype
        taken = next(each for each in free if (graph.specs[each[1]].size, graph.specs[each[1]].dtype) == form)
        free.remove(taken)
        found.append((index, taken[0]))
    return found


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("fused", [False, True])
def test_what_an_optimizer_updates_stays_where_it_is(kind: type[torch.optim.Optimizer], fused: bool) -> None:
    if fused and kind is torch.optim.RMSprop:
        pytest.skip("RMSprop has no fused form")
    options = {"fused": True} if fused else {}
    options |= {"momentum": 0.9} if kind is torch.optim.SGD else {}
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).to("xla")
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="xla")).sum().backward()
        optimizer.step()
        schedule = last_schedule()
    successor = successors(schedule.cut.graph)
    found = pairs(schedule)
    states = [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    kept = [each for each in [*model.parameters(), *states] if each.device.type == "xla"]
    assert len(found) >= len(kept)
    assert {index: output for index, output in found if index in successor} == {
        index: output for index, output in successor.items() if index in dict(found)
    }
    assert len(successor) == len(kept)


def test_the_outputs_without_a_predecessor_take_what_is_left() -> None:
    a, b, c = (torch.full((3,), float(n), device="xla") for n in range(3))
    torch_xla.sync()
    new = torch.stack([b, c]).sum(0)  # of the same form as the others, and no successor of any
    b.add_(c)
    a = b @ c + a * 2
    c.mul_(2)
    schedule = last_schedule()
    graph = schedule.cut.graph
    successor = successors(graph)
    assert in_order(graph, tuple(successor), successor) == list(range(len(graph.outputs)))
    assert new.tolist() == [3.0, 3.0, 3.0] and c.tolist() == [4.0, 4.0, 4.0] and a.tolist() == [18.0, 18.0, 18.0]


def test_two_values_that_change_places_are_not_mixed_up() -> None:
    a, b = torch.zeros(3, device="xla"), torch.ones(3, device="xla")
    torch_xla.sync()
    a, b = b * 2, a + 3
    torch_xla.sync()
    assert a.tolist() == [2.0, 2.0, 2.0] and b.tolist() == [3.0, 3.0, 3.0]


def test_what_a_compiled_graph_overwrites_stays_where_it_is() -> None:
    caches = [torch.zeros(4, 2, device="xla") for _ in range(3)]

    @torch.compile(backend="openxla")
    def write(at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        caches[2].index_copy_(0, at, x)  # in another order than they are arguments
        caches[0].index_copy_(0, at, x + caches[2].sum())
        caches[1].index_copy_(0, at, x + caches[0].sum())
        return x * 2

    with torch.no_grad():
        for row in range(2):
            write(torch.tensor([row], device="xla"), torch.ones(1, 2, device="xla"))
    schedule = device_for(None).last_schedule
    successor = successors(schedule.cut.graph)
    assert len(successor) == 3
    assert dict(pairs(schedule)) == successor
    assert caches[2].tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert caches[0].tolist()[:2] == [[3.0, 3.0], [5.0, 5.0]]
