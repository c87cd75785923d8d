"""A replayed step does what the recorded one did, from the state there is; what cannot be replayed is recorded."""

import copy
import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()


def replayed() -> int:
    return met.counter_value("ReplayedStep") or 0


class Trainer:
    """A model with dropout and batch norm, its optimizer, and a step that can be compiled in any way."""

    def __init__(self, device: str, optimizer: Callable[..., Any], dropout: float = 0.0) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
        )
        self.model = model.to(device)
        self.optimizer = optimizer(self.model.parameters())

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 6, generator=generator), torch.randint(3, (5,), generator=generator)) for _ in range(count)]


def on_xla(batch: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to("xla") for tensor in batch]


def assert_same_state(one: Any, other: Any) -> None:
    """Parameters, buffers, gradients and optimizer state of two trainers."""
    for (name, ours), theirs in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), msg=name)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())
    left, right = one.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    for ours, theirs in zip(left.values(), right.values(), strict=True):
        for key in ours:
            torch.testing.assert_close(torch.as_tensor(ours[key]).cpu(), torch.as_tensor(theirs[key]).cpu())


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "adam_capturable": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_replayed_training_step_is_that_of_the_cpu(name: str) -> None:
    ours, theirs = Trainer("xla", OPTIMIZERS[name]), Trainer("cpu", _on_cpu(name))
    step = torch_xla.compile(ours.step, replay=True)
    for batch in batches(9):
        torch.testing.assert_close(step(*on_xla(batch)).cpu(), theirs.step(*batch).detach())
    # the first call shows which values change on the host
    assert replayed() == (4 if name == "adamw" else 6) and step.is_replayed
    assert_same_state(ours, theirs)


def _on_cpu(name: str) -> Callable[..., Any]:
    if name == "adam_capturable":
        return lambda parameters: torch.optim.Adam(parameters, lr=0.01)
    return OPTIMIZERS[name]


def test_random_numbers_of_a_replay_are_those_a_recording_would_have_drawn() -> None:
    trainers = [Trainer("xla", OPTIMIZERS["adamw_fused"], dropout=0.5) for _ in range(2)]
    losses: list[list[float]] = []
    for trainer, replay in zip(trainers, (True, False), strict=True):
        torch.manual_seed(11)
        step = torch_xla.compile(trainer.step, replay=replay)
        losses.append([step(*on_xla(batch)).item() for batch in batches(8)])
    assert losses[0] == losses[1] and len(set(losses[0])) == 8
    assert replayed() == 5
    assert_same_state(*trainers)


def test_a_replay_compiles_nothing_and_records_nothing() -> None:
    trainer = Trainer("xla", OPTIMIZERS["adamw_fused"])
    step = torch_xla.compile(trainer.step, replay=True)
    batch = on_xla(batches(1)[0])
    for _ in range(4):
        step(*batch)
    met.clear_counters()
    for _ in range(3):
        step(*batch)
    assert replayed() == 3
    assert met.counter_value("UncachedCompile") is None
    assert met.counter_value("xla::linear") is None


def test_state_that_is_changed_between_replays_is_used() -> None:
    ours, theirs = Trainer("xla", OPTIMIZERS["sgd"]), Trainer("cpu", OPTIMIZERS["sgd"])
    step = torch_xla.compile(ours.step, replay=True)
    for index, batch in enumerate(batches(10)):
        if index == 6:
            for trainer in (ours, theirs):
                with torch.no_grad():
                    trainer.model[0].weight.mul_(0.5)
        if index == 8:
            state = copy.deepcopy(theirs.model.state_dict())
            ours.model.load_state_dict(state)
        torch.testing.assert_close(step(*on_xla(batch)).cpu(), theirs.step(*batch).detach())
    assert replayed() == 7
    assert_same_state(ours, theirs)


def test_what_the_garbage_collector_calls_is_no_effect_of_the_step() -> None:
    def look_at_the_clock(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    weight = torch.ones(3, device="xla")
    step = torch_xla.compile(lambda x: weight.add_(x), replay=True)
    threshold = gc.get_threshold()
    gc.callbacks.append(look_at_the_clock)
    gc.set_threshold(1)
    try:
        for _ in range(5):
            step(torch.ones(3, device="xla"))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(look_at_the_clock)
    assert replayed() == 2 and gc.isenabled()


def test_a_number_that_changes_is_recorded_once_more_and_said_once() -> None:
    ours, theirs = Trainer("xla", OPTIMIZERS["sgd"]), Trainer("cpu", OPTIMIZERS["sgd"])
    step = torch_xla.compile(ours.step, replay=True, name="train")
    told: list[str] = []
    for index, batch in enumerate(batches(10)):
        if index == 5:
            for trainer in (ours, theirs):
                trainer.optimizer.param_groups[0]["lr"] = 0.05
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(step(*on_xla(batch)).cpu(), theirs.step(*batch).detach())
        told += [str(warning.message) for warning in caught]
    assert len(told) == 1
    assert (
        told[0].startswith("train is recorded this time: ") and "param_groups[0]['lr']: 0.1 before, 0.05 now" in told[0]
    )
    assert step.is_replayed and replayed() == 4
    assert_same_state(ours, theirs)


def test_a_schedule_in_a_tensor_is_replayed() -> None:
    rate = torch.tensor(0.1, device="xla")
    ours = Trainer("xla", lambda parameters: torch.optim.SGD(parameters, lr=rate, fused=True))
    theirs = Trainer("cpu", lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(t.optimizer, 0.8) for t in (ours, theirs)]
    step = torch_xla.compile(ours.step, replay=True)
    for batch in batches(9):
        torch.testing.assert_close(step(*on_xla(batch)).cpu(), theirs.step(*batch).detach())
        for schedule in schedules:
            schedule.step()
    assert replayed() >= 5
    torch.testing.assert_close(rate.item(), theirs.optimizer.param_groups[0]["lr"])
    assert_same_state(ours, theirs)


def test_a_model_that_goes_to_evaluation_and_back_is_right() -> None:
    ours, theirs = Trainer("xla", OPTIMIZERS["sgd"]), Trainer("cpu", OPTIMIZERS["sgd"])
    step = torch_xla.compile(ours.step, replay=True)
    with pytest.warns(UserWarning, match=r"recorded this time: .*training: True before, False now"):
        for index, batch in enumerate(batches(10)):
            if index in (5, 7):
                for trainer in (ours, theirs):
                    trainer.model.train(index == 7)
            torch.testing.assert_close(step(*on_xla(batch)).cpu(), theirs.step(*batch).detach())
    assert_same_state(ours, theirs)


def test_gradients_accumulate_over_replays() -> None:
    ours, theirs = nn.Linear(3, 2).to("xla"), nn.Linear(3, 2)
    theirs.load_state_dict({name: value.cpu() for name, value in ours.state_dict().items()})

    def accumulate(model: nn.Module, x: torch.Tensor) -> None:
        model(x).square().sum().backward()

    step = torch_xla.compile(lambda x: accumulate(ours, x), replay=True)
    for index in range(8):
        x = torch.full((4, 3), float(index))
        step(x.to("xla"))
        accumulate(theirs, x)
        torch.testing.assert_close(ours.weight.grad.cpu(), theirs.weight.grad)
    assert replayed() == 5


def test_gradients_that_are_dropped_between_replays_come_back() -> None:
    model = nn.Linear(3, 2).to("xla")
    step = torch_xla.compile(lambda x: model(x).sum().backward(), replay=True)
    for _ in range(6):
        model.zero_grad()
        step(torch.ones(4, 3, device="xla"))
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[4.0] * 3] * 2
    assert replayed() == 3


def test_a_gradient_that_somebody_keeps_does_not_change() -> None:
    trainer = Trainer("xla", OPTIMIZERS["sgd"])
    step = torch_xla.compile(trainer.step, replay=True)
    data = batches(8)
    for batch in data[:5]:
        step(*on_xla(batch))
    kept = trainer.model[0].weight.grad
    before = kept.cpu()
    step(*on_xla(data[5]))
    assert replayed() == 3
    torch.testing.assert_close(kept.cpu(), before)
    assert not torch.equal(trainer.model[0].weight.grad.cpu(), before)


def test_each_kind_of_arguments_has_its_own_replay() -> None:
    scale = torch.ones(2, device="xla")

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor, double: bool = False) -> dict[str, Any]:
        y = x * scale * (2 if double else 1)
        return {"sum": y.sum(), "parts": [y, y.t()], "double": double}

    for _ in range(6):
        for size in (2, 3):
            for double in (False, True):
                x = torch.randn(size, 2)
                result = step(x.to("xla"), double=double)
                assert result["double"] is double
                torch.testing.assert_close(result["parts"][0].cpu(), x * (2 if double else 1))
                torch.testing.assert_close(result["parts"][1].cpu(), x.t() * (2 if double else 1))
    assert replayed() == 12


def test_results_may_be_parts_of_the_state_and_views() -> None:
    weight = nn.Parameter(torch.arange(6.0, device="xla").reshape(2, 3))

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            weight.add_(1)
            x.mul_(2)
        return weight, x, (weight.detach() + x)[1]

    for index in range(6):
        x = torch.ones(2, 3, device="xla")
        same, given, row = step(x)
        assert same is weight and given is x
        assert x.tolist() == [[2.0] * 3] * 2
        assert row.tolist() == [index + 3 + 1 + 2.0, index + 4 + 1 + 2.0, index + 5 + 1 + 2.0]
    assert replayed() == 3


def test_writes_of_a_replay_count_as_writes() -> None:
    weight = nn.Parameter(torch.ones(3, device="xla"))

    @torch_xla.compile(replay=True)
    def step() -> None:
        with torch.no_grad():
            weight.mul_(2)

    for _ in range(4):
        step()
    output = (weight * weight).sum()
    step()
    assert replayed() == 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_memory_that_is_shared_with_a_copy_is_not_overwritten() -> None:
    weight = torch.ones(3, device="xla")

    @torch_xla.compile(replay=True)
    def step() -> None:
        weight.mul_(2)

    for _ in range(4):
        step()
    copied = weight.clone()  # shares the value until one of the two is written
    with pytest.warns(UserWarning, match="also held by something else"):
        step()
    assert copied.tolist() == [16.0] * 3 and weight.tolist() == [32.0] * 3


def test_the_gradients_of_the_recorded_calls_are_not_kept() -> None:
    shape = (37, 53)
    weight = nn.Parameter(torch.ones(shape, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @torch_xla.compile(replay=True)
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        return loss

    before = replayed()
    for _ in range(5):
        step()
    torch_xla.sync(wait=True)
    assert replayed() > before
    gc.collect()
    assert len([array for array in jax.live_arrays() if array.shape == shape]) == 2  # the parameter and its gradient


def test_a_parameter_with_other_memory_is_noticed() -> None:
    weight = nn.Parameter(torch.ones(3, device="xla"))
    step = torch_xla.compile(lambda: (weight * 3).detach(), replay=True)
    for _ in range(4):
        assert step().tolist() == [3.0] * 3
    weight.data = torch.full((3,), 5.0, device="xla")
    with pytest.warns(UserWarning, match="given other memory"):
        assert step().tolist() == [15.0] * 3


class Scaled(nn.Module):
    """A module of the user's own, which names a global and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.factor = 2.0
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor * FACTOR


FACTOR = 1.0


class Loop:
    """A trainer of the user with attributes that its step never reads."""

    def __init__(self) -> None:
        self.model = Scaled().to("xla")
        self.rate = 1.0
        self.epoch = 0
        self.history: list[float] = []

    @property
    def scale(self) -> float:
        return self.rate * 2

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x) * self.scale).detach()


def test_what_nobody_looks_at_may_change() -> None:
    loop = Loop()
    step = torch_xla.compile(loop.step, replay=True)
    for index in range(8):
        assert step(torch.ones(3, device="xla")).tolist() == [4.0] * 3
        loop.epoch += 1
        loop.history.append(float(index))
    assert replayed() == 5


@pytest.mark.parametrize("change", ["attribute", "behind a property", "global"])
def test_what_the_code_names_may_not(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    step = torch_xla.compile(loop.step, replay=True)
    x = torch.ones(3, device="xla")
    for _ in range(4):
        assert step(x).tolist() == [4.0] * 3
    if change == "attribute":
        loop.model.factor = 3.0
    elif change == "behind a property":
        loop.rate = 1.5
    else:
        monkeypatch.setitem(globals(), "FACTOR", 1.5)
    with pytest.warns(UserWarning, match="recorded this time: .* before, .* now"):
        assert step(x).tolist() == [6.0] * 3
    assert replayed() == 1


def test_a_number_that_changes_all_the_time_ends_the_replays() -> None:
    loop = Loop()
    step = torch_xla.compile(loop.step, replay=True, name="step")
    told = []
    for index in range(40):
        loop.rate = 1 + index // 4  # floats would be computed with
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert step(torch.ones(3, device="xla")).tolist() == [4.0 * loop.rate] * 3
        told += [str(each.message) for each in caught]
    assert told[-1].startswith("step is recorded, not replayed: what it sees changes too often, this time ")
    assert not step.is_replayed


def test_a_replayed_function_inside_a_region_is_a_part_of_it() -> None:
    inner = torch_xla.compile(lambda x: x + 1, replay=True)
    outer = torch_xla.compile(lambda x: inner(x * 2) * 3, full_graph=True, num_different_graphs_allowed=1)
    for _ in range(5):
        assert outer(torch.ones(2, device="xla")).tolist() == [9.0, 9.0]


@pytest.mark.filterwarnings("ignore:.*also held by something else")
def test_an_argument_that_is_also_seen_is_another_case() -> None:
    state = torch.ones(3, device="xla")

    def advance(x: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        return x * 2

    step = torch_xla.compile(advance, replay=True)
    for _ in range(5):
        assert step(torch.ones(3, device="xla")).tolist() == [2.0] * 3
    assert replayed() == 2
    assert step(state).tolist() == [14.0] * 3  # after the addition, as Python says


@pytest.mark.filterwarnings("ignore:.*also held by something else")
def test_an_argument_may_be_a_part_of_other_memory() -> None:
    step = torch_xla.compile(lambda x, y: x.copy_(y), replay=True)
    y = torch.full((2, 3), 5.0, device="xla")
    for _ in range(5):
        assert step(torch.ones(2, 3, device="xla"), y).tolist() == [[5.0] * 3] * 2
    whole = torch.zeros(4, 3, device="xla")
    step(whole[:2], y)
    assert whole.tolist() == [[5.0] * 3] * 2 + [[0.0] * 3] * 2


def test_a_recurrent_network_is_replayed() -> None:
    lstm = nn.LSTM(3, 4).to("xla")
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = lstm(x)[0].square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch_xla.compile(step, replay=True)
    x = torch.ones(5, 2, 3, device="xla")
    losses = [compiled(x).item() for _ in range(6)]
    assert replayed() == 3 and losses == sorted(losses, reverse=True)


class Counter:
    def __init__(self) -> None:
        self.steps = 0
        self.kept: list[torch.Tensor] = []


def refusal(function: Callable[..., Any], *args: Any, calls: int = 14) -> str:
    """The warning that a function is not replayed; it must keep giving right results."""
    step = torch_xla.compile(function, replay=True, name="f")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            step(*args)
    assert not step.is_replayed and replayed() == 0
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1 and messages[0].startswith("f is recorded, not replayed: "), messages
    return messages[0].removeprefix("f is recorded, not replayed: ")


def test_a_value_read_in_the_middle_is_refused_with_its_line() -> None:
    x = torch.ones(3, device="xla")

    def function() -> torch.Tensor:
        total = x.sum().item()  # this line
        return x * total

    line = function.__code__.co_firstlineno + 1
    assert refusal(function).startswith(f"it reads a value on the host ({__file__}:{line} in function)")


def test_a_counter_is_refused_with_its_line() -> None:
    x, counter = torch.ones(3, device="xla"), Counter()

    def function() -> torch.Tensor:
        y = x * 2
        counter.steps += 1
        return y

    line = function.__code__.co_firstlineno + 2
    reason = refusal(function)
    assert reason.startswith("it changes counter.steps: ") and f"({__file__}:{line} in function)" in reason
    assert counter.steps == 14


def test_a_result_in_a_list_is_refused() -> None:
    x, counter = torch.ones(3, device="xla"), Counter()

    def function() -> None:
        counter.kept.append(x * 2)

    assert refusal(function).startswith("it changes counter.kept: ")
    assert len(counter.kept) == 14


def test_printing_is_refused_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(3, device="xla")

    def function() -> torch.Tensor:
        print("step")
        return x + 1

    line = function.__code__.co_firstlineno + 1
    assert refusal(function) == f"it prints ({__file__}:{line} in function)"
    assert capsys.readouterr().out.count("step") == 14


def test_random_numbers_of_python_are_refused() -> None:
    x = torch.ones(3, device="xla")
    assert refusal(lambda: x * random.random()).startswith("it draws random numbers of Python's `random`")


def test_a_tensor_on_the_cpu_that_it_reads_and_changes_is_refused_with_its_line() -> None:
    counts, x = torch.zeros(3), torch.ones(3, device="xla")

    def count() -> torch.Tensor:
        counts.add_(1)
        return x * counts.sum().item()

    line = count.__code__.co_firstlineno + 1
    assert refusal(count) == f"it changes counts, a tensor on the CPU ({__file__}:{line} in count)"


def test_the_end_of_a_step_inside_is_refused() -> None:
    x = torch.ones(3, device="xla")

    def function() -> torch.Tensor:
        y = x + 1
        torch_xla.sync()
        return y

    assert refusal(function).startswith("it ends a step inside")


def test_an_upload_that_changes_is_refused_and_one_that_stays_is_not() -> None:
    x = torch.ones(3, device="xla")
    sizes = iter(range(1, 100))
    assert refusal(lambda: x * torch.tensor([float(next(sizes))] * 3, device="xla"))
    step = torch_xla.compile(lambda: x * torch.tensor([1.0, 2.0, 3.0], device="xla"), replay=True)
    for _ in range(6):
        assert step().tolist() == [1.0, 2.0, 3.0]
    assert replayed() == 3


def test_a_result_that_can_still_be_differentiated_is_refused() -> None:
    model = nn.Linear(3, 2).to("xla")
    assert "could still be differentiated" in refusal(lambda x: model(x).sum(), torch.ones(1, 3, device="xla"))


def test_arguments_on_the_cpu_are_refused() -> None:
    assert "on the CPU" in refusal(lambda x: x.to("xla") + 1, torch.ones(3))


def test_an_error_leaves_everything_as_it_was() -> None:
    x = torch.ones(3, device="xla")
    fails = True

    @torch_xla.compile(replay=True)
    def step() -> torch.Tensor:
        if fails:
            raise ValueError("no")
        return x + 1

    with pytest.raises(ValueError, match="no"):
        step()
    fails = False
    for _ in range(5):
        assert step().tolist() == [2.0] * 3
    assert replayed() == 2


def test_autocast_is_part_of_what_is_replayed() -> None:
    model = nn.Linear(3, 2).to("xla")
    step = torch_xla.compile(lambda x: model(x).detach(), replay=True)
    x = torch.ones(1, 3, device="xla")
    for _ in range(4):
        assert step(x).dtype is torch.float32
    with pytest.warns(UserWarning, match="autocast"), torch.autocast("xla", dtype=torch.bfloat16):
        assert step(x).dtype is torch.bfloat16


@pytest.mark.slow
def test_a_replayed_step_of_an_encoder_costs_the_host_less_than_half_of_a_recorded_one() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def quickest(call: Callable[[torch.Tensor], torch.Tensor]) -> float:
        times = []
        for _ in range(60):
            torch_xla.sync(wait=True)
            start = time.thread_time()
            call(x)
            torch_xla.sync()
            times.append(time.thread_time() - start)
        return min(times[10:])

    x = torch.randn(4, 16, 64, device="xla")
    recorded = quickest(step)
    # XLA computes a part in this thread, so on a busy machine neither is the host's part alone.
    assert quickest(torch_xla.compile(step, replay=True)) < 0.5 * recorded
    assert replayed() >= 50


# Why a call was recorded


def test_the_calls_before_the_first_replay_tell_how_many_are_missing() -> None:
    @torch_xla.compile(replay=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    told = [double.why_recorded]
    for _ in range(5):
        double(torch.ones(3, device="xla"))
        told.append(double.why_recorded)
    assert told == [
        "it was not called yet",
        "a replay needs 3 calls in a row that do the same, and has seen 1",
        "a replay needs 3 calls in a row that do the same, and has seen 2",
        "it was the last of 3 calls that did the same: the next one is replayed",
        "",
        "",
    ]


def test_what_differed_is_told_from_the_second_call_on() -> None:
    seen = []

    @torch_xla.compile(replay=True)
    def keeps(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = []
        for _ in range(12):
            keeps(torch.ones(3, device="xla"))
            told.append(keeps.why_recorded)
    assert "it changes seen: 1 entries before, 2 now" in told[1]
    assert told[1].endswith("; a replay needs 3 calls in a row that do the same, and has seen 0")
    assert told[-1] == told[-2] and told[-1].startswith("it changes seen: ")  # given up


def test_what_ended_a_replay_is_told() -> None:
    factor = 2

    @torch_xla.compile(replay=True)
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    for _ in range(4):
        scale(torch.ones(3, device="xla"))
    assert scale.why_recorded == ""
    factor = 3
    with pytest.warns(UserWarning, match="is recorded this time"):
        assert scale(torch.ones(3, device="xla")).tolist() == [3, 3, 3]
    assert "factor" in scale.why_recorded and scale.why_recorded.endswith("and has seen 1")


def test_an_argument_that_cannot_be_replayed_and_a_call_within_another_are_told() -> None:
    @torch_xla.compile(replay=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.warns(UserWarning, match="is recorded, not replayed"):
        double(torch.ones(3))
    assert "CPU" in double.why_recorded
    with torch_xla.compile():
        double(torch.ones(3, device="xla"))
    assert double.why_recorded == "it was called in another compiled function, and is a part of that"
