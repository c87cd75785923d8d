"""Graphs that are captured once and replayed on the memory that they read and wrote."""

import copy
import threading
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import torch_xla
from torch_xla import debug
from torch_xla._engine.step import graph_capture
from torch_xla.experimental import eager_mode

pytestmark = pytest.mark.usefixtures("few_objects")


def captured(body: Callable[[], object]) -> torch.xla.XLAGraph:  # type: ignore[name-defined]
    graph = torch.xla.XLAGraph()  # type: ignore[attr-defined]
    with torch.xla.graph(graph):  # type: ignore[attr-defined]
        body()
    return graph


@pytest.fixture(params=["recorded", "eager"])
def mode(request: pytest.FixtureRequest) -> object:
    eager_mode(request.param == "eager")
    yield request.param
    eager_mode(False)


def test_nothing_runs_before_the_replay_and_memory_is_as_it_was(mode: str) -> None:
    x = torch.full((3,), 2.0, device="xla")
    kept = []
    graph = captured(lambda: kept.append(x.add_(1) * 10))
    assert x.tolist() == [2.0] * 3
    graph.replay()
    assert x.tolist() == [3.0] * 3 and kept[0].tolist() == [30.0] * 3
    x.copy_(torch.tensor([5.0, 6.0, 7.0]))
    graph.replay()
    graph.replay()
    assert x.tolist() == [7.0, 8.0, 9.0] and kept[0].tolist() == [70.0, 80.0, 90.0]


CALLS: list[Callable[[list[torch.Tensor]], object]] = [
    lambda t: t[0].add_(t[1]),
    lambda t: t[1].mul_(2).sub_(t[2]),
    lambda t: t[2].copy_(t[0]),
    lambda t: t[0].copy_(t[2]),
    lambda t: t[1][1:].fill_(3),
    lambda t: t[2].t()[0].add_(t[0][1]),
    lambda t: t.__setitem__(0, t[1] + t[2]),
    lambda t: t.append(t[0].view(-1)),
    lambda t: t[0].zero_(),
    lambda t: torch.cat((t[0], t[1]), out=t[-1].new_empty(0)),
]


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    calls=st.lists(st.integers(0, len(CALLS) - 1), max_size=6),
    shares=st.booleans(),
    values=st.lists(st.integers(-4, 4), min_size=4, max_size=4),
)
def test_a_replay_does_what_the_calls_would_do(calls: list[int], shares: bool, values: list[int]) -> None:
    cpu = [torch.arange(9.0).view(3, 3) + n for n in range(3)]
    memory = [each.to("xla") for each in cpu]
    if shares:  # two tensors that happen to hold one value
        memory[1].copy_(memory[0])
        cpu[1].copy_(cpu[0])
    own = list(memory)
    graph = torch.xla.XLAGraph(keep_graph=True)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The XLA graph is empty")
        with torch.xla.graph(graph):  # type: ignore[attr-defined]
            for call in calls:
                CALLS[call](own)
    for each, expected in zip(memory, cpu, strict=True):
        assert each.tolist() == expected.tolist()
    for index, number in enumerate(values):
        memory[index % 3].add_(number)
        cpu[index % 3].add_(number)
        graph.replay()
        theirs = list(cpu)
        for call in calls:
            CALLS[call](theirs)
        for found, expected in zip([*memory, *own], [*cpu, *theirs], strict=True):
            assert found.tolist() == expected.tolist()


def test_memory_that_was_never_written_is_an_input_too() -> None:
    x = torch.empty(2, device="xla")
    kept = []
    graph = captured(lambda: kept.append(x + 1))
    x.copy_(torch.tensor([1.0, 2.0]))
    graph.replay()
    assert kept[0].tolist() == [2.0, 3.0]


def test_random_numbers_go_on_as_without_a_graph(mode: str) -> None:
    own = torch.Generator("xla")
    drawn: list[torch.Tensor] = []

    def draw() -> None:
        drawn[:] = [
            torch.rand(2, device="xla"),
            torch.rand(2, device="xla", generator=own),
            torch.rand(2, device="xla"),
        ]

    graph = torch.xla.XLAGraph()  # type: ignore[attr-defined]
    graph.register_generator_state(own)
    torch.manual_seed(3)
    with torch.xla.graph(graph):  # type: ignore[attr-defined]
        draw()
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append([each.tolist() for each in drawn])
    replayed.append(torch.rand(2, device="xla").tolist())
    torch.manual_seed(3)
    own.manual_seed(67280421310721)
    expected = []
    for _ in range(3):
        draw()
        expected.append([each.tolist() for each in drawn])
    assert replayed == [*expected, torch.rand(2, device="xla").tolist()]


def test_a_generator_that_the_graph_does_not_know_is_refused() -> None:
    own = torch.Generator("xla")
    with pytest.raises(RuntimeError, match=r"register_generator_state\(generator\) before the capture"):
        captured(lambda: torch.rand(2, device="xla", generator=own))
    with pytest.raises(RuntimeError, match="seeded during the capture"):
        captured(lambda: (torch.manual_seed(5), torch.rand(2, device="xla")))


def test_a_training_step_in_a_graph_does_what_it_does_on_the_cpu(mode: str) -> None:
    torch.manual_seed(0)
    cpu = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model = copy.deepcopy(cpu).to("xla")
    reference = torch.optim.Adam(cpu.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
    batches = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(5)]
    x, target = torch.empty(5, 4, device="xla"), torch.empty(5, 2, device="xla")

    def step(
        model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for batch in batches[:2]:
        step(model, optimizer, batch[0].to("xla"), batch[1].to("xla"))
        step(cpu, reference, *batch)
        optimizer.zero_grad()
        reference.zero_grad()
    losses = []
    graph = captured(lambda: losses.append(step(model, optimizer, x, target)))
    with debug.no_recompile():
        for batch in batches[2:]:
            x.copy_(batch[0])
            target.copy_(batch[1])
            graph.replay()
            reference.zero_grad()
            torch.testing.assert_close(losses[0].cpu(), step(cpu, reference, *batch), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(model.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_an_optimizer_that_counts_on_the_host_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="Attempting XLA graph capture of step.*Adam.*capturable=True"):
        captured(optimizer.step)
    captured(torch.optim.SGD([weight], lr=0.5).step).replay()
    assert weight.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("make", [partial(torch.optim.Adam, capturable=True), partial(torch.optim.SGD, momentum=0.9)])
def test_state_that_an_optimizer_makes_in_a_capture_is_refused(make: Callable[..., torch.optim.Optimizer]) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = make([weight], lr=0.5)
    weight.grad = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="made its state .* during the capture.*Train for one step before"):
        captured(optimizer.step)
    assert weight.tolist() == [1.0, 1.0] and not graph_capture.is_capturing()


REFUSED: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("a value is read", lambda x: (x * 2).tolist()),
    ("a value is read", lambda x: x.item()),
    ("a value is read", lambda x: torch.nonzero(x)),
    ("a value is read", lambda x: x[torch.ones_like(x) > 0].sum().item()),
    ("a value is read", lambda x: None if (x > 0) else None),
    ("values come from the host", lambda x: x + torch.ones(1).to("xla")),
    ("a program is started", lambda x: (x * 2, torch_xla.sync())),
    ("a program is started", lambda x: (x * 2, torch.xla.synchronize())),  # type: ignore[attr-defined]
    ("a replay starts a program", lambda x: OTHER[0].replay()),
]
OTHER: list[torch.xla.XLAGraph] = []  # type: ignore[name-defined]


@pytest.mark.parametrize(("why", "call"), REFUSED)
def test_what_waits_for_the_device_is_refused_and_leaves_all_as_it_was(
    why: str, call: Callable[[torch.Tensor], object]
) -> None:
    x = torch.full((1,), 3.0, device="xla")
    OTHER[:] = [captured(lambda: x.mul_(1))]
    with pytest.raises(RuntimeError, match="not permitted while a graph is captured.*test_graph_capture") as e:
        captured(lambda: (x.add_(1), call(x)))
    assert why in str(e.value)
    assert not graph_capture.is_capturing() and x.tolist() == [3.0]
    assert (x + 1).tolist() == [4.0]


def test_numbers_that_the_host_knows_decide_nothing() -> None:
    mask = torch.tensor([True, False, True], device="xla")
    with pytest.raises(RuntimeError, match="a value is read"):
        captured(lambda: torch.arange(3.0, device="xla")[mask])


def test_one_graph_is_captured_at_a_time() -> None:
    graph = torch.xla.XLAGraph()  # type: ignore[attr-defined]
    with torch.xla.graph(graph):  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="a graph is being captured on xla:0 already"):
            torch.xla.XLAGraph().capture_begin()  # type: ignore[attr-defined]
        made = torch.ones(1, device="xla")
    with pytest.raises(RuntimeError, match="has been captured already"):
        graph.capture_begin()
    graph.replay()
    assert made.tolist() == [1.0]


def test_a_thread_may_upload_where_the_capture_is_local() -> None:
    found: list[torch.Tensor] = []
    graph = torch.xla.XLAGraph()  # type: ignore[attr-defined]
    x = torch.ones(2, device="xla")
    with torch.xla.graph(graph, capture_error_mode="thread_local"):  # type: ignore[attr-defined]
        y = x + 1
        other = threading.Thread(target=lambda: found.append(torch.arange(2.0).to("xla")))
        other.start()
        other.join()
    graph.replay()
    assert y.tolist() == [2.0, 2.0] and found[0].tolist() == [0.0, 1.0]


def test_memory_of_another_form_is_refused() -> None:
    x = torch.ones(2, device="xla")
    graph = captured(lambda: x.mul_(2))
    x.resize_(3)
    with pytest.raises(RuntimeError, match=r"size \[2\] at the capture, and is now .* size \[3\]"):
        graph.replay()


def test_what_is_overwritten_gives_its_memory_unless_it_is_held() -> None:
    x = torch.ones(1 << 12, device="xla")
    graph = captured(lambda: x.add_(1))
    graph.replay()
    twin = x.clone()
    held = torch.ones_like(x).copy_(x)
    before = x.untyped_storage().value.buffer
    graph.replay()
    assert not before.is_deleted() and held[0].item() == 2 and twin[0].item() == 2
    del held
    before = x.untyped_storage().value.buffer
    torch_xla.sync()
    graph.replay()
    assert before.is_deleted() and x[0].item() == 4
