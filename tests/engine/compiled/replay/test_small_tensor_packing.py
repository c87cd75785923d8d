"""Packs are not seen: whatever is done to the state between two replays, it is what it would be without them."""

import copy
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug
import torch_xla.debug.metrics as met
from torch_xla._engine.compiled.replay import small_tensor_packing
from torch_xla._engine.lowering.machinery.packed_arrays import UNPACK
from torch_xla._engine.step import executor
from torch_xla._engine.step.step import Step


@pytest.fixture(autouse=True)
def packs_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tensor_packing, "_AFTER", 1)
    monkeypatch.setattr(small_tensor_packing, "_SPARES", 20)
    torch_xla.sync()


def count(name: str) -> int:
    return met.counter_value(name) or 0


class Net(nn.Module):
    """Values of several dtypes: what is packed, and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)
        )
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 3, dtype=torch.bfloat16))
        self.shift = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        y = self.layers(x)
        return torch.where(self.mask, y * self.scale, y + self.shift)


class Training:
    """A net, its optimizer and its step."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(3)
        self.net = Net().to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, fused=True)
        self.x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(device)
        self.y = torch.tensor([0, 1, 2, 1, 0]).to(device)
        self.kept: list[torch.Tensor] = []

    @property
    def weight(self) -> torch.Tensor:
        return self.net.layers[0].weight

    def step(self) -> torch.Tensor:
        loss = F.cross_entropy(self.net(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict[str, torch.Tensor]:
        found = dict(self.net.state_dict())
        for name, parameter in self.net.named_parameters():
            found[f"{name}.grad"] = parameter.grad
            for key, value in self.optimizer.state[parameter].items():
                found[f"{name}.{key}"] = value
        return {name: tensor.detach().cpu() for name, tensor in found.items()}


def assert_same(ours: Training, theirs: Training) -> None:
    expected = theirs.state()
    for name, tensor in ours.state().items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")
    for ours_kept, theirs_kept in zip(ours.kept, theirs.kept, strict=True):
        torch.testing.assert_close(ours_kept.cpu(), theirs_kept)


def _nothing(training: Training) -> None:
    pass


def _read(training: Training) -> None:
    training.weight.sum().item()


def _keep_a_state_dict(training: Training) -> None:
    training.kept += [tensor.clone() for tensor in training.net.state_dict().values()]


def _keep_a_copy(training: Training) -> None:
    training.kept += list(copy.deepcopy(training.net).parameters())


def _keep_clones(training: Training) -> None:
    training.kept += [training.weight.detach().clone(), training.weight.grad.clone()]


def _overwrite(training: Training) -> None:
    with torch.no_grad():
        training.weight.zero_()


def _give_other_data(training: Training) -> None:
    training.weight.data = torch.full((8, 6), 0.25).to(training.x.device)


def _write_through_a_view(training: Training) -> None:
    training.weight.data[1:3] *= 2


def _load(training: Training) -> None:
    training.net.load_state_dict({k: v * 0.5 for k, v in training.net.state_dict().items()})


def _load_the_optimizer(training: Training) -> None:
    training.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))


def _scale_gradients(training: Training) -> None:
    nn.utils.clip_grad_norm_(training.net.parameters(), 0.01)


def _drop_gradients(training: Training) -> None:
    training.optimizer.zero_grad()


def _change_an_average(training: Training) -> None:
    training.optimizer.state[training.weight]["exp_avg"].mul_(0.5)


def _count_back(training: Training) -> None:
    training.optimizer.state[training.weight]["step"].sub_(1)


def _exchange_two(training: Training) -> None:
    one, other = training.net.scale, training.net.shift
    one.data, other.data = other.data, one.data


BETWEEN: list[Callable[[Training], None]] = [
    _nothing, _read, _keep_a_state_dict, _keep_a_copy, _keep_clones, _overwrite, _give_other_data,
    _write_through_a_view, _load, _load_the_optimizer, _scale_gradients, _drop_gradients, _change_an_average,
    _count_back, _exchange_two,
]  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
def test_what_happens_between_two_replays_is_as_on_the_cpu(between: Callable[[Training], None]) -> None:
    ours, theirs = Training("xla"), Training("cpu")
    step = torch_xla.compile(ours.step, replay=True)
    packed, losses = count("PackedStep"), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recorded again, where it must be
        for index in range(14):
            if index in (8, 11):
                assert index == 11 or count("PackedStep") >= packed + 3
                between(ours)
                between(theirs)
            losses.append((step(), theirs.step()))
    for loss, expected in losses:
        torch.testing.assert_close(loss.cpu(), expected)
    assert_same(ours, theirs)


def test_packs_are_few_arrays_and_no_more_memory() -> None:
    training = Training("xla")
    step = torch_xla.compile(training.step, replay=True)
    for _ in range(4):
        step()
    torch_xla.sync(wait=True)
    gc.collect()
    before = jax.live_arrays()
    arrays, size = len(before), sum(array.nbytes for array in before)
    del before
    for _ in range(4):
        step()
    torch_xla.sync(wait=True)
    after = jax.live_arrays()
    assert count("PackedStep") >= 3
    assert len(after) < arrays - 40  # 14 parameters and buffers, two averages, step counts, gradients
    assert sum(array.nbytes for array in after) <= size


def test_a_value_that_is_read_takes_the_pack_apart_once() -> None:
    training = Training("xla")
    step = torch_xla.compile(training.step, replay=True)
    for _ in range(8):
        step()
    taken_apart = count("Unpacking")
    values = training.state()
    again = training.state()
    assert 1 <= count("Unpacking") - taken_apart <= 4  # a pack of float32 and one of bfloat16: state, gradients
    for name, tensor in values.items():
        assert torch.equal(tensor, again[name])


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
def test_two_replays_that_take_turns_do_not_pack_and_unpack_for_ever() -> None:
    ours, theirs = Training("xla"), Training("cpu")

    def evaluate() -> torch.Tensor:
        with torch.no_grad():
            return ours.net.layers[3](torch.relu(ours.net.layers[0](ours.x))).sum()

    step, evaluation = torch_xla.compile(ours.step, replay=True), torch_xla.compile(evaluate, replay=True)
    taken_apart = count("Unpacking")
    for _ in range(60):
        step()
        value = evaluation()
        theirs.step()
    expected = theirs.net.layers[3](torch.relu(theirs.net.layers[0](theirs.x))).sum().detach()
    torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert step.is_replayed and evaluation.is_replayed
    # After 1, 2, 4, 8, 16 and 32 steps, and two packs each time: float32 and bfloat16.
    assert count("Unpacking") - taken_apart <= 12


@pytest.mark.filterwarnings("ignore:Training.step is recorded this time")
def test_a_replay_that_is_recorded_again_packs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training("xla")
    step = torch_xla.compile(training.step, replay=True)
    for _ in range(24):
        step()
    monkeypatch.setattr(small_tensor_packing, "_AFTER", 1_000)
    packed = count("PackedStep")
    training.optimizer.param_groups[0]["weight_decay"] = 0.5  # an argument of the same program
    for _ in range(8):
        step()
    assert step.is_replayed and count("PackedStep") > packed
    training.optimizer.param_groups[0]["maximize"] = True  # another program has to earn it
    packed = count("PackedStep")
    for _ in range(8):
        step()
    assert step.is_replayed and count("PackedStep") == packed


@pytest.mark.parametrize(("width", "is_packed"), [(32 << 10, True), (8 << 20, False)])
def test_small_values_are_packed_unless_large_ones_beside_them_take_the_device_long(
    width: int, is_packed: bool
) -> None:
    state = [torch.zeros(1 + each, device="xla") for each in range(64)]
    large = torch.zeros(width, device="xla")

    def step() -> None:
        for each in (*state, large):
            each.add_(1)

    called = torch_xla.compile(step, replay=True)
    packed = count("PackedStep")
    for _ in range(8):
        called()
    assert (count("PackedStep") > packed) == is_packed
    assert [each.max().item() for each in (*state, large)] == [8] * 65


def test_a_program_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Training("xla"), Training("cpu")
    step = torch_xla.compile(ours.step, replay=True)
    for _ in range(8):
        step()
        theirs.step()
    run, failed = executor.run, []

    def fails_once(step: Step, ready: Any = None) -> None:
        program = step.program
        if program.graph.operations[0].plan.op == UNPACK and len(program.graph.operations) > 1 and not failed:
            failed.append(program)
            raise torch.OutOfMemoryError("no memory")
        run(step, ready)

    monkeypatch.setattr(executor, "run", fails_once)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        step()
    assert failed
    assert_same(ours, theirs)
    for _ in range(4):
        step()
        theirs.step()
    assert_same(ours, theirs)


def test_who_reads_a_value_while_the_program_starts_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Training("xla"), Training("cpu")
    step = torch_xla.compile(ours.step, replay=True)
    start, read = executor._start, []

    def reads_first(step: Step, *rest: Any) -> None:
        program = step.program
        if program.graph.operations[0].plan.op == UNPACK and len(program.graph.operations) > 1 and not read:
            read.append(ours.weight.detach().cpu())
        start(step, *rest)

    for index in range(10):
        if index == 7:
            monkeypatch.setattr(executor, "_start", reads_first)
        step()
        theirs.step()
    assert read
    assert_same(ours, theirs)


def test_nothing_is_packed_where_compiling_is_refused_and_reading_compiles_nothing() -> None:
    training = Training("xla")
    step = torch_xla.compile(training.step, replay=True)
    for _ in range(4):
        step()
    packed = count("PackedStep")
    with torch_xla.debug.no_recompile():
        for _ in range(4):
            step()
    assert count("PackedStep") == packed
    for _ in range(4):
        step()
    assert count("PackedStep") > packed
    with torch_xla.debug.no_recompile():
        step()
        training.weight.detach().cpu()
        training.weight.grad.cpu()
        step()


def replayed(training: Training) -> Callable[[], Any]:
    """Its step, which was replayed once."""
    step, before = torch_xla.compile(training.step, replay=True), count("ReplayedStep")
    while count("ReplayedStep") == before:
        step()
    return step


@pytest.mark.slow
def test_another_thread_records_while_what_packing_takes_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    training, recorded = Training("xla"), list[float]()
    step = replayed(training)
    prepare = executor.prepare

    def prepared(*args: Any) -> bool:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: recorded.append((training.x.sum() * 0 + len(recorded)).item()))
            thread.start()
            thread.join(20)
        return prepare(*args)

    monkeypatch.setattr(executor, "prepare", prepared)
    packed = count("PackedStep")
    step()
    step()
    assert count("PackedStep") > packed and recorded == [*map(float, range(len(recorded)))] and len(recorded) > 2


def test_packing_that_fails_to_compile_is_not_tried_at_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tensor_packing, "_AFTER", 3)
    training, failed = Training("xla"), list[int]()
    step = replayed(training)

    def fails(*args: Any) -> bool:
        failed.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(executor, "prepare", fails)
    with pytest.raises(RuntimeError, match="no compiler"):
        for _ in range(4):
            step()
    for _ in range(2):
        step()
    assert failed == [1]


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
def test_other_arguments_are_recorded_from_what_is_packed() -> None:
    ours, theirs = Training("xla"), Training("cpu")

    step = torch_xla.compile(lambda x, y: _on(ours, x, y), replay=True)
    for rows in (5, 5, 5, 5, 5, 5, 5, 4, 5, 5, 4, 4, 4, 4, 5):
        step(ours.x[:rows].clone(), ours.y[:rows].clone())
        _on(theirs, theirs.x[:rows], theirs.y[:rows])
    assert count("PackedStep") > 0
    assert_same(ours, theirs)


def _on(training: Training, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(training.net(x), y)
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    return loss.detach()


def test_packed_values_are_counted_as_alive() -> None:
    training = Training("xla")
    step = torch_xla.compile(training.step, replay=True)
    for _ in range(9):
        step()
    gc.collect()
    alive = count("CreateXlaTensor") - count("DestroyXlaTensor")
    taken_apart = count("Unpacking")
    training.weight.untyped_storage().value.buffer  # noqa: B018
    assert count("Unpacking") == taken_apart + 1
    assert count("CreateXlaTensor") - count("DestroyXlaTensor") == alive


@pytest.mark.slow
def test_another_process_finds_the_packed_program(tmp_path: Path) -> None:
    program = """
import torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
from torch_xla._engine.compiled.replay import small_tensor_packing
disk_cache.WORTH_KEEPING_SECONDS, small_tensor_packing._AFTER, small_tensor_packing._SPARES = 0.0, 1, 10
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
x = torch.ones(2, 4).to("xla")
@torch_xla.compile(replay=True)
def step():
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
for _ in range(9):
    loss = step()
print(loss.item(), *(counters.value_of(name) or 0 for name in ("PackedStep", "StableHloCompile", "PersistentCacheHit")))
"""
    environment = dict(os.environ, XLA_PERSISTENT_CACHE_PATH=str(tmp_path))
    runs = [
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (loss, packed, compiled, hits), (loss_again, packed_again, compiled_again, hits_again) = (
        run.stdout.split() for run in runs
    )
    assert loss == loss_again and packed == packed_again == "5"
    assert int(compiled) >= 4 and hits == "0"
    assert compiled_again == "0" and hits_again == compiled
