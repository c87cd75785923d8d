"""Programs in stages give what whole programs give, and compile what repeats once."""

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug
from tests.support.examples import examples
from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.compile.stages import stage_cuts, staged_program
from torch_xla._engine.diagnostics.logs import switches
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import in_flight
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla.experimental.scan_layers import scan_layers

LAYERS = 5


@pytest.fixture(autouse=True)
def small_programs_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES", 1)
    clear_schedules()
    yield
    clear_schedules()


def counted(name: str) -> int:
    return counters.value_of(name) or 0


def staged_programs() -> list[Program]:
    return [program for program in program_cache._programs.values() if program.stages]


def run(function: Callable[[], Any], operations: int) -> Any:
    """Return the result of `function` on a device without cached programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_STAGE_OPERATIONS", str(operations))
        clear_schedules()
        staged_program._executables.clear()
        torch.manual_seed(0)
        torch_xla.manual_seed(0)
        return function()


def whole(function: Callable[[], Any]) -> Any:
    """Return the result when programs are compiled in one piece."""
    result = run(function, 0)
    assert not staged_programs()
    return result


def in_stages(function: Callable[[], Any], fewest: int = 20) -> Any:
    """Return the result when programs are compiled in stages, and check that they are."""
    result = run(function, fewest)
    assert staged_programs()
    return result


def check(function: Callable[[], Any], fewest: int = 20) -> Any:
    expected, found = whole(function), in_stages(function, fewest)
    torch.testing.assert_close(found, expected)
    return found


class Block(nn.Module):
    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), self.dropout)


def blocks(dropout: float = 0.0, layers: int = LAYERS) -> nn.Sequential:
    return nn.Sequential(*(Block(dropout=dropout) for _ in range(layers)))


def train(
    model: nn.Module, device: str = "xla", steps: int = 2, lrs: tuple[float, ...] = (0.1,), **options: Any
) -> list[Tensor]:
    """Losses, parameters, gradients and the optimizer's state after some steps."""
    x = torch.randn(4, 8).to(device)
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=lrs[0], **options)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lrs[step % len(lrs)]
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if device == "xla":
            torch_xla.sync()
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [each.detach().cpu() for each in (*losses, *model.parameters(), *gradients, *state)]


@pytest.mark.parametrize("options", [{}, pytest.param({"fused": True}, marks=pytest.mark.slow)], ids=str)
def test_forward_backward_and_optimizer_are_compiled_once_for_all_layers(options: dict[str, bool]) -> None:
    found = check(lambda: train(blocks(), **options))
    torch.manual_seed(0)
    torch.testing.assert_close(found, train(blocks(), "cpu", **options), rtol=1e-4, atol=1e-5)
    program = staged_programs()[-1]
    # The gradient of the first layer's input is not needed.
    assert sorted(times for times, _ in stage_cuts.repeated(program.stages or ())) == [LAYERS - 1, LAYERS, LAYERS]
    assert counted("StagedProgram") == 1  # the first step's is that of all


class Loop(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return scan_layers(self, x)  # type: ignore[no-any-return]


def test_the_update_of_layers_that_ran_as_a_loop_is_compiled_once_for_all_layers() -> None:
    found = in_stages(lambda: train(Loop(*blocks()), foreach=True))
    torch.manual_seed(0)
    torch.testing.assert_close(found, train(blocks(), "cpu"), rtol=1e-4, atol=1e-5)
    # Each reads its slices of the stacked gradients.
    assert [times for times, _ in stage_cuts.repeated(staged_programs()[-1].stages or ())] == [LAYERS]


@pytest.mark.slow
def test_a_compiled_model_is_cut_as_a_recorded_one_is() -> None:
    def compiled(dropout: float = 0.0) -> list[Tensor]:
        torch._dynamo.reset()
        return train(torch.compile(blocks(dropout).to("xla"), backend="openxla"), foreach=True)  # type: ignore[arg-type]

    found = check(compiled)
    torch.manual_seed(0)
    torch.testing.assert_close(found, train(blocks(), "cpu"), rtol=1e-4, atol=1e-5)
    program = staged_programs()[-1]
    assert all(str(operation.plan.op).startswith("compiled::") for operation in program.graph.operations[:1])
    assert sorted(times for times, _ in stage_cuts.repeated(program.stages or ()))[-2:] == [LAYERS, LAYERS]
    # Each layer has the random keys it has in one piece, and the backward pass those of the forward pass.
    check(lambda: compiled(0.5))


def test_a_stage_is_compiled_once_for_all_programs() -> None:
    def infer() -> Tensor:
        model, x = blocks().eval().to("xla"), torch.randn(4, 8).to("xla")
        with torch.no_grad():
            one = model(x).cpu()
            before = counted("StageCompile")
            two = model(x).relu().cpu()
        return torch.stack([one, two, torch.tensor(counted("StageCompile") - before).expand(4, 8)])

    one, two, compiled = in_stages(infer, 10)
    assert torch.equal(two, one.relu()) and compiled.unique().tolist() == [1]  # what follows the layers


@pytest.mark.slow
def test_layers_draw_their_own_random_numbers() -> None:
    def drop() -> list[Tensor]:
        x = torch.ones(64, 64).to("xla")
        values = []
        for _ in range(LAYERS):
            x = F.dropout(x, 0.5).abs().add(1).sqrt()
            values.append(x)
        torch_xla.sync()
        return [value.cpu() for value in values]

    values = check(drop, fewest=10)
    dropped = [value == 1 for value in values]
    assert all(0.4 < each.float().mean() < 0.6 for each in dropped)
    assert not any(torch.equal(one, other) for one, other in zip(dropped, dropped[1:], strict=False))
    check(lambda: train(blocks(dropout=0.3)))


@pytest.mark.slow
def test_all_layers_may_have_the_same_weights() -> None:
    def shared() -> list[Tensor]:
        block = Block()
        return train(nn.Sequential(*[block] * LAYERS))

    check(shared)

    def tied() -> list[Tensor]:
        model = blocks()
        for block in model:
            block.narrow.bias = model[0].norm.bias
        return train(model)

    check(tied)


def test_layers_may_differ_in_a_number() -> None:
    def scaled() -> Tensor:
        x = torch.randn(4, 8).to("xla")
        for layer in range(LAYERS):
            x = x + (x.sin() * (0.1 * layer) + x.cos()).tanh().pow(1 + layer % 3) / (layer + 1)
        return x.cpu()

    check(scaled, fewest=10)
    (program,) = staged_programs()
    assert max(times for times, _ in stage_cuts.repeated(program.stages or ())) >= LAYERS - 1


def test_numbers_that_rules_look_at_are_baked_into_stages_of_their_own() -> None:
    def looked_at() -> Tensor:
        x = torch.rand(4, 8).to("xla")
        for layer in range(2 * LAYERS):
            x = x.sin().cos().tanh() / torch.linalg.vector_norm(x, 2 + layer // LAYERS, dim=1, keepdim=True)
        return x.cpu()

    check(looked_at, fewest=8)
    (program,) = staged_programs()
    assert program._must_bake
    assert counted("StageCompile") == 3  # the first layer, whose input is the user's; the others with 2, and with 3


@pytest.mark.slow
def test_numbers_that_change_from_step_to_step_compile_no_more_than_without_stages() -> None:
    def counts(function: Callable[[Callable[[], Any]], Any]) -> int:
        before = counted("UncachedCompile")
        function(lambda: train(blocks(), steps=5, lrs=(0.1, 0.05, 0.02, 0.01, 0.005)))
        return counted("UncachedCompile") - before

    assert counts(in_stages) <= counts(whole)


@pytest.mark.slow
def test_a_layer_in_the_middle_may_be_another() -> None:
    def mixed() -> list[Tensor]:
        model = blocks(layers=9)
        model[4] = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        model[7].norm = nn.Identity()
        return train(model)

    check(mixed, 15)  # the two runs of equal layers spare 18 operations


def test_results_in_the_middle_may_be_kept() -> None:
    def kept() -> list[Tensor]:
        x = torch.randn(4, 8).to("xla")
        held = []
        for layer, block in enumerate(blocks(layers=8).to("xla")):
            x = block(x)
            if layer in (2, 5):
                held.append(x)
        torch_xla.sync()
        return [each.detach().cpu() for each in (*held, x)]

    check(kept)


@pytest.mark.slow
def test_checkpoints_save_memory_in_stages_too() -> None:
    sizes = []

    def measured(saves: bool) -> list[Tensor]:
        model = nn.Sequential(*(Block(64) for _ in range(8))).to("xla")
        x = torch.randn(512, 64).to("xla")
        for block in model:
            x = checkpoint(block, x, use_reentrant=False) if saves else block(x)
        x.square().mean().backward()
        torch_xla.sync()
        (ready,) = list(program_cache._programs.values())[-1]._executables.values()
        sizes.append(ready.executable.memory_analysis().intermediate if staged_programs() else 0)
        return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

    plain = check(lambda: measured(False))
    torch.testing.assert_close(check(lambda: measured(True)), plain)
    assert sizes[3] < 0.6 * sizes[1]


def test_what_is_given_away_is_given_away_in_stages() -> None:
    def update() -> tuple[int, int]:
        model = blocks().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(4, 8).to("xla")
        for _ in range(3):
            buffers = [p.untyped_storage().value.buffer for p in model.parameters()]  # type: ignore[attr-defined]
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
        return sum(each.is_deleted() for each in buffers), len(buffers)

    deleted, parameters = in_stages(update)
    assert deleted == parameters


def test_waiting_waits_for_every_stage() -> None:
    def waited() -> bool:
        model = nn.Sequential(*(Block(128) for _ in range(LAYERS))).to("xla")
        x = torch.randn(2048, 128).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        in_flight.wait()
        return all(p.untyped_storage().value.buffer.is_ready() for p in model.parameters())  # type: ignore[attr-defined]

    assert in_stages(waited)
    assert len(staged_programs()[-1].ends) > 1


def test_stages_are_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path))
    first = in_stages(lambda: train(blocks(dropout=0.1), steps=4, lrs=(0.1, 0.05)))
    compiled, hits = counted("StageCompile"), counted("PersistentCacheHit")
    assert compiled and counted("StableHloCompile") == counted("UncachedCompile") > 0
    programs = counted("StableHloCompile")
    again = in_stages(lambda: train(blocks(dropout=0.1), steps=4, lrs=(0.1, 0.05)))
    assert all(map(torch.equal, again, first))
    assert (counted("StageCompile"), counted("StableHloCompile")) == (compiled, programs)
    assert counted("UncachedCompile") == 2 * programs  # a program counts the same, wherever it came from
    assert counted("PersistentCacheHit") >= hits + compiled


def test_a_staged_program_answers_as_a_whole_one() -> None:
    def answers() -> tuple[str, str, Any]:
        x = torch.randn(64, 64).to("xla")
        for _ in range(LAYERS):
            x = (x.sin() @ x).cos() + x
        torch_xla.sync()
        (program,) = [each for each in program_cache._programs.values() if len(each.graph.operations) > 3]
        return program.optimized(()), program.lowered(()).as_text(), program.compile_for(())

    hlo, stablehlo, sizes = whole(answers)
    hlo_in_stages, stablehlo_in_stages, sizes_in_stages = in_stages(answers, 10)
    assert stablehlo_in_stages == stablehlo
    assert hlo_in_stages.count("HloModule") == 1 and "stage 0, 1, 2" in hlo_in_stages
    assert hlo_in_stages.count("dot(") < hlo.count("dot(")
    assert sizes_in_stages[:3] == sizes[:3] and sizes_in_stages.intermediate > 0


def test_what_was_compiled_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "analysis.txt"
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(file))
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    switches.apply_settings()

    def repeat() -> None:
        x = torch.randn(4, 4).to("xla")
        for _ in range(LAYERS):
            x = x.sin().cos().tanh().exp().neg().sigmoid()
        torch_xla.sync()

    in_stages(repeat, 10)
    monkeypatch.delenv("PT_XLA_DEBUG_LEVEL")
    switches.apply_settings()
    assert re.search(r"^Stage Analysis: graph \w+: compiled once: 5 × 6 operations$", file.read_text(), re.MULTILINE)
    assert "; compiled once: 5 × 6 operations]" in torch_xla.debug.explain_recompiles()
    assert counted("SharedOperations") == 4 * 6


def test_the_user_line_of_an_operation_is_that_of_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> str:
        x = torch.randn(4, 4).to("xla")
        for _ in range(LAYERS):
            x = x.sin().cos().tanh().exp().neg()
        torch_xla.sync()
        (program,) = program_cache._programs.values()
        return program.optimized(())

    assert Path(__file__).name in in_stages(lines, 10)


def test_values_that_came_before_a_change_of_dtype_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = torch.randn(4, 8).to("xla"), torch.randn(8).to("xla")

    def add() -> Tensor:
        y = x
        for _ in range(3 * LAYERS):
            y = (y.sin() + 1).cos()
        return (y + bias).cpu()

    torch_xla.sync()
    expected = in_stages(add, 10)
    monkeypatch.setenv("XLA_USE_BF16", "1")
    torch.testing.assert_close(in_stages(add, 10), expected, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_small_programs_and_small_savings_are_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    run(lambda: train(blocks()), 10_000)
    assert not staged_programs()
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 4 << 20)
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES", 4 << 20)
    run(lambda: train(blocks()), 20)
    assert not staged_programs()


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "neg": torch.neg,
    "sum": lambda x: x.sum(0, keepdim=True).expand(4, 4),
    "transpose": lambda x: x.t(),
    "dropout": lambda x: F.dropout(x, 0.25),
    "norm": lambda x: F.layer_norm(x, (4,)),
    "scale": lambda x: x * 0.5,
    "write": lambda x: x.clone().mul_(0.5),
    "row": lambda x: torch.cat([x[:2].tanh(), x[2:]]),
}
commands = st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 3), st.integers(0, 3))


def check_repeated(
    layer: list[tuple[str, int, int]], times: int, odd: int, learns: bool, kept: Collection[int]
) -> None:
    """Check a `layer` repeated `times` times, without its first operation in turn `odd`."""

    def program() -> list[Tensor]:
        # In float64, for a norm of nearly equal numbers makes much of how the compiler rounds.
        x = torch.rand(4, 4, dtype=torch.float64).to("xla").requires_grad_(learns)
        weights = [torch.rand(4, 4, dtype=torch.float64).to("xla").requires_grad_(learns) for _ in range(times)]
        values, held = [x, x, x, x], []
        for turn in range(times):
            for name, one, other in layer[turn == odd :]:
                value = UNARY[name](values[-1 - one]) + values[-1 - other] * weights[turn]
                values.append(value.clamp(-2, 2) * (1 + 0.1 * (turn % 2)))
            if turn in kept:
                held.append(values[-1])
        if learns:
            torch.stack(values[-3:]).sum().backward()
        results = [values[-1], *held, *(each.grad for each in (x, *weights) if each.grad is not None)]
        del values
        torch_xla.sync()
        return [each.detach().cpu() for each in results]

    torch.testing.assert_close(run(program, 1), whole(program), rtol=1e-10, atol=1e-10)


repeated = given(
    st.lists(commands, min_size=3, max_size=5),
    st.integers(4, 6),
    st.integers(0, 6),
    st.booleans(),
    st.sets(st.integers(0, 5), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=examples(10))
@repeated
def test_many_programs_that_repeat_give_the_same_in_stages(
    layer: list[tuple[str, int, int]], times: int, odd: int, learns: bool, kept: set[int]
) -> None:
    check_repeated(layer, times, odd, learns, kept)


def test_a_fused_step_of_many_parameters_is_compiled_in_parts() -> None:
    # One operation, whose elements weigh as much as operations do.
    def step() -> list[Tensor]:
        parameters = [torch.full((4 + n % 3,), 0.1 * n, device="xla", requires_grad=True) for n in range(48)]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for each in parameters:
            each.grad = torch.ones_like(each)
        torch_xla.sync()
        optimizer.step()
        torch_xla.sync()
        return [each.detach().cpu() for each in parameters]

    expected = run(step, 0)
    shared = counted("SharedOperations")
    found = run(step, 20)
    assert counted("SharedOperations") - shared >= 20
    torch.testing.assert_close(found, expected)


def test_an_optimizers_one_operation_weighs_as_much_as_the_operations_on_lists_that_it_is_made_of() -> None:
    def size(options: dict[str, bool]) -> int:
        parameters = [torch.full((3,), 0.1 * n, device="xla", requires_grad=True) for n in range(40)]
        for each in parameters:
            each.grad = torch.ones_like(each)
        optimizer = torch.optim.AdamW(parameters, **options)
        torch_xla.sync()
        optimizer.step()
        graph = graph_of([each.detach() for each in parameters]).graph
        torch_xla.sync()
        return stage_cuts._size(graph)

    one, many = size({}), size({"capturable": True})  # its steps are on the device, and take operations of their own
    assert 2 * 40 <= one <= many


@pytest.mark.parametrize("at_most", [4, 16, 28])
def test_there_are_no_more_stages_than_may_be(at_most: int) -> None:
    kinds = [(torch.tanh, torch.sin), (torch.exp, torch.neg), (torch.cos, torch.abs)]
    x = torch.ones(4).to("xla")
    for kind in kinds:
        for _ in range(40):
            x = kind[1](kind[0](x))
        x = x.floor()  # between what repeats
    graph = graph_of([x]).graph
    parts = stage_cuts.of(graph, (), 20, 1, at_most)
    assert len(parts) <= at_most and (parts or at_most == 4)
    assert sum(len(part.operations) for part in parts) in (0, len(graph.operations))
