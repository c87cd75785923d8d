"""An optimizer's step in rounds gives what the whole step gives, and compiles each size of tensors once."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_xla
from tests.support.examples import examples
from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.compile.stages import stage_cuts, staged_program
from torch_xla._engine.compile.stages.optimizer_chunks import LEAST_SPARED, MOST_ROUNDS, in_rounds
from torch_xla._engine.compiled.replay import small_tensor_packing
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.lowering.machinery.packed_arrays import PACK, UNPACK
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import pending_graph
from torch_xla._engine.step.schedule import clear_schedules

LAYERS = 12


@pytest.fixture(autouse=True)
def on_a_new_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rounds of small tensors, too; layers stay whole."""
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_OF_ROUND", 1)
    clear_schedules()
    staged_program._executables.clear()
    yield
    clear_schedules()


def updates(sizes: list[int]) -> Graph:
    """Two operations on lists of tensors of these sizes, one before them that they need, and one that needs them."""
    tensors, others = ([torch.ones(n).to("xla") for n in sizes] for _ in range(2))
    torch_xla.sync()
    factor = others[0].sum()
    torch._foreach_mul_(tensors, factor)
    torch._foreach_add_(tensors, others)
    total = torch.stack([each.sum() for each in tensors])
    return pending_graph.graph_of([*tensors, total]).graph


@settings(max_examples=examples(20))
@given(st.lists(st.integers(1, 4), min_size=2, max_size=60), st.integers(2, 12))
def test_rounds_compute_each_tensor_once_and_as_many_of_each_size(sizes: list[int], most: int) -> None:
    graph = updates(sizes)
    found = in_rounds(graph, most, 1)
    counts = Counter(sizes).values()
    spared = [sum(n // rounds * (rounds - 1) for n in counts) for rounds in range(2, min(most - 2, MOST_ROUNDS) + 1)]
    assert bool(found) == (max(spared, default=0) >= LEAST_SPARED)
    if not found:
        return
    assert len(found) <= most
    made = set(range(len(graph.inputs)))
    for piece in (piece for stage in found for piece in stage):
        assert made.issuperset(piece.operands) and made.isdisjoint(piece.outputs)
        made.update(piece.outputs)
    assert made == set(range(len(graph.specs)))
    rounds = found[1:-1]
    assert len({tuple(piece.plan for piece in stage) for stage in rounds}) == 1
    each = len(rounds[0][0].outputs)
    assert each * (len(rounds) - 1) >= 0.9 * max(spared)


def test_a_list_alone_elements_that_need_each_other_and_small_ones_are_left_whole() -> None:
    alone = [torch.ones(2).to("xla") for _ in range(40)]
    torch_xla.sync()
    torch._foreach_mul_(alone, 2.0)
    assert in_rounds(pending_graph.graph_of(alone).graph, 30, 1) == []
    graph = updates([2] * 40)
    read = 4 * (2 * 40 * 2 + 1)  # two lists, and the factor
    assert len(in_rounds(graph, 30, read)) == 4 and in_rounds(graph, 30, read + 1) == []
    torch_xla.sync()
    first = torch._foreach_add(alone, 1.0)
    turned = torch._foreach_mul(first, [*first[1:], first[0]])
    assert in_rounds(pending_graph.graph_of(turned).graph, 30, 1) == []


def train(device: str, make: Callable[..., torch.optim.Optimizer], clips: bool = False) -> list[Tensor]:
    """Losses, parameters, gradients and the optimizer's state after some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(8, 8), nn.Tanh()))).to(device)
    x = torch.randn(4, 8).to(device)
    optimizer = make([*model.parameters()])
    losses = []
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.detach())
        if device == "xla":
            torch_xla.sync()
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [each.detach().cpu() for each in (*losses, *model.parameters(), *gradients, *state)]


def in_stages() -> list[Program]:
    return [program for program in program_cache._programs.values() if program.stages]


@pytest.mark.parametrize(
    "make",
    [
        lambda own: torch.optim.AdamW(own, foreach=True),
        lambda own: torch.optim.AdamW(own, fused=True),
        lambda own: torch.optim.SGD(own, 0.01, momentum=0.9),
        lambda own: torch.optim.AdamW(own, amsgrad=True, capturable=own[0].is_xla, foreach=True),
    ],
    ids=["foreach", "fused", "momentum", "capturable"],
)
def test_a_training_step_in_rounds_is_that_of_the_cpu(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    found = train("xla", make)
    (program,) = in_stages()
    assert program.stages is not None and [times for times, _ in stage_cuts.repeated(program.stages)] == [4]
    # Forward, backward and what is left over of each size, and one round.
    assert counters.value_of("StageCompile") == 2 and counters.value_of("UncachedCompile") <= 2
    torch.testing.assert_close(found, train("cpu", make), rtol=1e-4, atol=1e-5)


def test_gradients_that_are_clipped_come_before_all_rounds() -> None:
    found = train("xla", torch.optim.AdamW, clips=True)
    assert in_stages()
    torch.testing.assert_close(found, train("cpu", torch.optim.AdamW, clips=True), rtol=1e-4, atol=1e-5)


def test_no_program_is_cut_where_none_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "0")
    train("xla", torch.optim.AdamW)
    assert not in_stages()


def test_a_replay_in_rounds_is_packed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tensor_packing, "_AFTER", 3)

    def trained(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(4, 8).to(device)

        def step() -> Tensor:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = torch_xla.compile(step, replay=True) if device == "xla" else step
        return [*[run().cpu() for _ in range(12)], *[each.detach().cpu() for each in model.parameters()]]

    found = trained("xla")
    assert counters.value_of("PackedStep") and in_stages()
    torch.testing.assert_close(found, trained("cpu"), rtol=1e-4, atol=1e-5)
    assert not any(each.plan.op in (PACK, UNPACK) for program in in_stages() for each in program.graph.operations)


def test_what_an_optimizer_replaces_is_given_away_in_rounds() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(4, 8).to("xla")
    for _ in range(3):
        buffers = [p.untyped_storage().value.buffer for p in model.parameters()]  # type: ignore[attr-defined]
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    assert in_stages() and all(each.is_deleted() for each in buffers)
