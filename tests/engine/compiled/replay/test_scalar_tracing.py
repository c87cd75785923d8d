"""Host computations of a step are recorded: step counts of optimizers, learning rates, numbers computed from them."""

import copy
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compiled.replay.replayed_function import Replayed
from torch_xla._engine.step import executor

pytestmark = pytest.mark.filterwarnings("ignore:.* is recorded")


def counter(name: str) -> int:
    return met.counter_value(name) or 0


def replayed() -> int:
    return counter("ReplayedStep")


def model_on(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)


class Loop:
    """A model, its optimizer, and a step that trains it."""

    def __init__(self, device: str, make: Callable[[Any], Any]) -> None:
        self.model = model_on(device)
        self.optimizer = make(self.model.parameters())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def assert_same(self, other: "Loop") -> None:
        for ours, theirs in zip(self.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)
        left, right = self.optimizer.state_dict(), other.optimizer.state_dict()
        for index, states in right["state"].items():
            for name, state in states.items():
                ours = torch.as_tensor(left["state"][index][name]).cpu()
                torch.testing.assert_close(ours, torch.as_tensor(state))
        assert [group["lr"] for group in left["param_groups"]] == [group["lr"] for group in right["param_groups"]]


def inputs(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(5, 4, generator=generator)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "NAdam, one by one": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=False),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RAdam, one by one": lambda p: torch.optim.RAdam(p, lr=0.01, foreach=False),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD, one by one": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=False),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_replayed_under_a_schedule(name: str) -> None:
    ours, theirs = Loop("xla", OPTIMIZERS[name]), Loop("cpu", OPTIMIZERS[name])
    schedules = [LambdaLR(loop.optimizer, lambda step: 1 / (1 + step)) for loop in (ours, theirs)]
    step = torch_xla.compile(ours.step, replay=True)
    for index, x in enumerate(inputs(16)):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs.step(x))
        for schedule in schedules:
            schedule.step()
        if index >= 8:  # RAdam takes another way from its sixth step on
            assert step.why_recorded == "" or index < 11 and name.startswith("RAdam"), index
    assert type(ours.optimizer.param_groups[0]["lr"]) is float
    assert replayed() >= 7
    ours.assert_same(theirs)


def test_one_call_asks_no_more_of_the_device_than_a_replay_without_a_host() -> None:
    loop = Loop("xla", OPTIMIZERS["AdamW"])
    step = torch_xla.compile(loop.step, replay=True)
    xs = [x.to("xla") for x in inputs(12)]
    for x in xs[:8]:
        step(x)
    counts = {name: counter(name) for name in ("ExecuteReplicated", "UncachedCompile", "xla::_local_scalar_dense")}
    for x in xs[8:]:
        step(x)
    assert {name: counter(name) - before for name, before in counts.items()} == {
        "ExecuteReplicated": 0, "UncachedCompile": 0, "xla::_local_scalar_dense": 0
    }  # fmt: skip
    assert replayed() >= 4


def test_counts_that_somebody_changes_between_replays_are_used() -> None:
    ours, theirs = Loop("xla", OPTIMIZERS["AdamW"]), Loop("cpu", OPTIMIZERS["AdamW"])
    step = torch_xla.compile(ours.step, replay=True)
    for index, x in enumerate(inputs(20)):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs.step(x))
        if index == 10:
            for loop in (ours, theirs):
                for state in loop.optimizer.state.values():
                    state["step"].fill_(2)
        if index == 14:
            for loop in (ours, theirs):
                loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
        assert (step.why_recorded == "") == (index in (*range(5, 15), 19)), (index, step.why_recorded)
    ours.assert_same(theirs)


@pytest.mark.filterwarnings("ignore:.*is recorded this time. a number that the host computes compares otherwise")
def test_counts_that_were_equal_and_are_no_longer_make_another_replay() -> None:
    ours, theirs = Loop("xla", OPTIMIZERS["AdamW"]), Loop("cpu", OPTIMIZERS["AdamW"])
    step = torch_xla.compile(ours.step, replay=True)
    for index, x in enumerate(inputs(14)):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs.step(x))
        if index == 7:
            for loop in (ours, theirs):
                next(iter(loop.optimizer.state.values()))["step"].fill_(2)
        assert (step.why_recorded == "") == (index in (5, 6, 7, 11, 12, 13)), (index, step.why_recorded)
    ours.assert_same(theirs)


def test_a_run_that_fails_leaves_the_counts_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Loop("xla", OPTIMIZERS["AdamW"]), Loop("cpu", OPTIMIZERS["AdamW"])
    step = torch_xla.compile(ours.step, replay=True)
    batches = [x.to("xla") for x in inputs(10)]
    for x in batches[:8]:
        step(x)
        theirs.step(x.cpu())
    assert step.why_recorded == ""
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(executor, "_enter", fails)
        with pytest.raises(KeyboardInterrupt):
            step(batches[8])
    assert [state["step"].item() for state in ours.optimizer.state.values()] == [8.0] * 4
    for x in batches[8:]:
        torch.testing.assert_close(step(x).cpu(), theirs.step(x.cpu()))
    ours.assert_same(theirs)


class Counting:
    """Functions that count on the CPU, and the same on the CPU alone."""

    def __init__(self, body: Callable[["Counting", torch.Tensor], Any]) -> None:
        self.count = torch.tensor(0.0)
        self.rate = 1.0
        self.body = body

    def step(self, x: torch.Tensor) -> Any:
        self.count += 1
        return self.body(self, x)


def run(body: Callable[[Counting, torch.Tensor], Any], calls: int = 14, changes_rate: bool = False) -> Replayed:
    """Calls a function on both devices, and compares what they give."""
    ours, theirs = Counting(body), Counting(body)
    step = torch_xla.compile(ours.step, replay=True)
    for index in range(calls):
        result, expected = step(torch.ones(3).to("xla")), theirs.step(torch.ones(3))
        torch.testing.assert_close(result, expected, check_device=False)
        assert ours.count.item() == index + 1
        if changes_rate:
            ours.rate = theirs.rate = 1.0 / (index + 2)
    return step


def branches(loop: Counting, x: torch.Tensor) -> torch.Tensor:
    count = loop.count.item()
    return x * count if count < 8 else x - count


def test_a_branch_by_a_number_is_taken_anew() -> None:
    step = run(branches)
    assert step.is_replayed and replayed() >= 5


BODIES: dict[str, Callable[[Counting, torch.Tensor], Any]] = {
    "tensor first": lambda loop, x: x * loop.count.item() + x / loop.count.item() - x.add(x, alpha=loop.count.item()),
    "number first": lambda loop, x: loop.count.item() * x + loop.count.item() / x + (loop.count.item() - x),
    "power": lambda loop, x: (x * 0.5) ** loop.count.item() + loop.count.item() ** (x * 0.5),
    "rate": lambda loop, x: x * loop.rate,
    "both": lambda loop, x: torch.add(input=x, other=x, alpha=loop.rate / loop.count.item()),
    "greatest": lambda loop, x: x * max(loop.count.item(), 0.5),
    "sum": lambda loop, x: x * sum([loop.count.item(), loop.rate, 1]),
    "looked at, and the same": lambda loop, x: nn.functional.dropout(x, 0.0 * loop.count.item()) * loop.rate,
    "comparison": lambda loop, x: x * (3.0 if loop.count > 0.1 and not loop.count == 5 else loop.rate),
    "lists": lambda loop, x: torch._foreach_mul([x, x + 1], [loop.count.item(), loop.rate])[1],
}


@pytest.mark.parametrize("name", BODIES)
def test_numbers_of_the_host_are_arguments_of_the_replay(name: str) -> None:
    step = run(BODIES[name], changes_rate=True)
    assert step.why_recorded == "" and replayed() >= 6


def averages(make: Callable[[nn.Module], Any], device: str) -> tuple[Loop, Any, Callable[[torch.Tensor], torch.Tensor]]:
    loop = Loop(device, OPTIMIZERS["AdamW"])
    average = make(loop.model)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = loop.step(x)
        average.update_parameters(loop.model)
        return loss

    return loop, average, step


def test_an_exponential_average_of_the_parameters_is_replayed() -> None:
    def make(model: nn.Module) -> Any:
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    ours, theirs = averages(make, "xla"), averages(make, "cpu")
    step = torch_xla.compile(ours[2], replay=True)
    for x in inputs(14):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs[2](x))
    assert step.why_recorded == "" and replayed() >= 7
    assert ours[1].n_averaged.item() == 14
    for one, other in zip(ours[1].parameters(), theirs[1].parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_an_average_that_divides_by_its_count_on_the_device_is_recorded() -> None:
    ours, theirs = averages(AveragedModel, "xla"), averages(AveragedModel, "cpu")
    step = torch_xla.compile(ours[2], replay=True)
    for x in inputs(13):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs[2](x))
    assert step.why_recorded and replayed() == 0
    for one, other in zip(ours[1].parameters(), theirs[1].parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other)


REFUSED: dict[str, tuple[Callable[[Counting, torch.Tensor], Any], str]] = {
    "math": (lambda loop, x: x * math.sqrt(loop.count.item()), "it looks at the value of a number that the host"),
    "tolist": (lambda loop, x: x * loop.count.tolist(), "it uses .*count.*on the CPU that it changes, with `tolist`"),
    "view": (lambda loop, x: x * loop.count.view(1).sum().item(), "it uses .*, with `view`"),
    "numpy": (lambda loop, x: x * float(loop.count.numpy()), "it uses .*, with `numpy`"),
    "whole": (lambda loop, x: x * int(loop.count), "it uses .*, with `__int__`"),
    "returned": (lambda loop, x: (x * 2, loop.count.item()), "it returns a number that the host computes"),
    "complex": (lambda loop, x: x * ((-loop.count.item()) ** 0.5).real, "it makes .* of a number that the host"),
    "comparison": (
        lambda loop, x: x * (loop.count > 3).to(torch.float32).item(),
        "it does more than a branch by a comp",
    ),
    "result": (lambda loop, x: x.mul(loop.count), "it uses .*, with `mul`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_of_the_host_is_recorded_with_its_line(name: str) -> None:
    body, text = REFUSED[name]
    step = run(body)
    assert not step.is_replayed and replayed() == 0
    with_line = (
        f"{text}.*test_scalar_tracing.py:{body.__code__.co_firstlineno}"
        if name not in ("returned", "uploaded")
        else text
    )
    assert re.search(with_line, step.why_recorded), step.why_recorded


def test_a_number_that_is_kept_is_a_float_afterwards() -> None:
    kept: dict[str, Any] = {"all": []}

    def keeps(loop: Counting, x: torch.Tensor) -> torch.Tensor:
        kept["last"] = loop.count.item()
        kept["all"].append(loop.count.item() * 2)
        loop.rate = loop.count.item() / 2
        return x * loop.rate

    step = run(keeps)
    assert type(kept["last"]) is float and kept["last"] == 14.0 and {type(each) for each in kept["all"]} == {float}
    assert kept["all"][::2] == kept["all"][1::2] == [2.0 * count for count in range(1, 15)]  # ours, and the CPU's
    assert not step.is_replayed


def test_a_rate_that_the_function_itself_changes_is_refused() -> None:
    def decays(loop: Counting, x: torch.Tensor) -> torch.Tensor:
        loop.rate *= 0.5
        return x * loop.rate

    step = run(decays, changes_rate=True)
    assert not step.is_replayed and "rate" in step.why_recorded


def test_what_a_hook_of_backward_does_is_seen() -> None:
    def backward(loop: Counting, x: torch.Tensor) -> torch.Tensor:
        weight = x.clone().requires_grad_()
        weight.register_hook(lambda gradient: gradient * loop.count.item())
        (weight * 3).sum().backward()
        return weight.grad  # type: ignore[return-value]

    step = run(backward)
    assert replayed() == 0 or step.why_recorded == ""


def test_an_error_on_the_host_is_that_of_the_function_at_its_line() -> None:
    count = torch.tensor(-9.0)
    seen: list[str] = []

    def divides(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * (1 / count.item())

    step = torch_xla.compile(divides, replay=True)
    x = torch.ones(2).to("xla")
    for index in range(12):
        try:
            assert step(x).tolist() == pytest.approx([1 / (index - 8)] * 2)
            seen.append(step.why_recorded)
        except ZeroDivisionError:
            assert index == 8 and count.item() == 0
    assert seen[5:8] == ["", "", ""] and count.item() == 3


def test_counts_that_share_memory_are_not_computed_apart() -> None:
    both = torch.zeros(2)
    first, second = both[0], both[1]

    def step(x: torch.Tensor) -> torch.Tensor:
        first.add_(1)
        second.add_(2)
        return x * first.item() + second.item()

    compiled = torch_xla.compile(step, replay=True)
    for index in range(1, 13):
        assert compiled(torch.ones(2).to("xla")).tolist() == [3.0 * index] * 2
    assert both.tolist() == [12.0, 24.0] and replayed() == 0


def test_a_function_that_replays_by_itself_trains_with_adamw_and_a_schedule() -> None:
    ours, theirs = Loop("xla", OPTIMIZERS["AdamW"]), Loop("cpu", OPTIMIZERS["AdamW"])
    schedules = [LambdaLR(loop.optimizer, lambda step: min(1.0, step / 10)) for loop in (ours, theirs)]
    step = torch_xla.compile(ours.step)
    for x in inputs(40):
        torch.testing.assert_close(step(x.to("xla")).cpu(), theirs.step(x))
        for schedule in schedules:
            schedule.step()
    assert step.why_recorded == "" and replayed() >= 15
    ours.assert_same(theirs)


FACTOR = 1.0


def test_a_global_that_somebody_changes_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch_xla.compile(lambda x: x * FACTOR, replay=True)
    for index in range(12):
        monkeypatch.setitem(globals(), "FACTOR", 1.0 + index)
        assert step(torch.ones(2).to("xla")).tolist() == [1.0 + index] * 2
    assert step.why_recorded == "" and replayed() >= 6 and FACTOR == 12.0


SCALE = 1.0


class Slotted:
    __slots__ = ("kept",)


def _by_type(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE if type(SCALE) in (int, float) else x * 0


def _by_numpy(x: torch.Tensor) -> torch.Tensor:
    return x * float(np.sqrt(SCALE))


def _by_name(x: torch.Tensor) -> torch.Tensor:
    return x * {float: SCALE, int: 0.0}[type(SCALE)]


def _by_decimal(x: torch.Tensor) -> torch.Tensor:
    return x * float(Decimal(SCALE))


@pytest.mark.parametrize("body", [_by_type, _by_numpy, _by_name, _by_decimal])
def test_a_program_that_nobody_asked_to_replay_sees_floats(
    body: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, x = torch_xla.compile(body), torch.ones(2)
    for index in range(30):
        monkeypatch.setitem(globals(), "SCALE", 1.0 + index)
        torch.testing.assert_close(step(x.to("xla")).cpu(), body(x))


def test_neither_does_it_see_counts_as_other_than_floats() -> None:
    def step(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        count += 1
        read = count.item()
        return x * read, float(np.sqrt(read))

    ours, theirs = torch.tensor(0.0), torch.tensor(0.0)
    compiled = torch_xla.compile(lambda x: step(ours, x))
    for _ in range(30):
        found, expected = compiled(torch.ones(2).to("xla")), step(theirs, torch.ones(2))
        torch.testing.assert_close(found[0].cpu(), expected[0])
        assert type(found[1]) is float and found[1] == expected[1]


def test_who_asks_for_types_sees_floats_in_what_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch_xla.compile(_by_type, replay=True)
    for index in range(12):
        monkeypatch.setitem(globals(), "SCALE", 1.0 + index)
        assert step(torch.ones(2).to("xla")).tolist() == [1.0 + index] * 2
    assert step.why_recorded


def test_an_error_that_may_come_of_a_number_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step, errors = torch_xla.compile(_by_numpy, replay=True), []
    for index in range(20):
        monkeypatch.setitem(globals(), "SCALE", 1.0 + index)
        try:
            assert step(torch.ones(2).to("xla")).tolist() == pytest.approx([(1.0 + index) ** 0.5] * 2)
        except TypeError:
            errors.append(index)
    assert len(errors) <= 1


def test_a_function_that_always_raises_is_not_watched_for_ever() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    step = torch_xla.compile(fails, replay=True)
    for _ in range(12):
        with pytest.raises(ValueError, match="no"):
            step(torch.ones(2).to("xla"))
    assert step.why_recorded == "it raises errors, the last time ValueError"


def _in_cell(keep: Any) -> Callable[[float], None]:
    def put(value: float) -> None:
        nonlocal keep
        keep = value

    return put


def _places() -> dict[str, tuple[Callable[[float], Any], Callable[[], Any]]]:
    slotted, ends, members, put = Slotted(), deque([0.0, 0.0]), {"none"}, _in_cell(0.0)
    attributes, pairs = Counting(branches), {"pair": (0.0, "")}
    return {
        "slot": (lambda value: setattr(slotted, "kept", value), lambda: slotted.kept),  # type: ignore[attr-defined]
        "deque": (lambda value: ends.append(value), lambda: ends[-1]),
        "set": (lambda value: members.add(value), lambda: next(each for each in members if each != "none")),  # type: ignore[arg-type]
        "cell": (put, lambda: put.__closure__[0].cell_contents),  # type: ignore[index]
        "attribute": (lambda value: setattr(attributes, "rate", value), lambda: attributes.rate),
        "tuple": (lambda value: pairs.update(pair=(value, "it")), lambda: pairs["pair"][0]),
    }


@pytest.mark.parametrize("name", _places())
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_numbers_are_floats_wherever_they_are_kept(name: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put, get = _places()[name]

    def step(x: torch.Tensor) -> torch.Tensor:
        put(SCALE * 2)
        if fails:
            raise ValueError(SCALE)
        return x * SCALE

    compiled = torch_xla.compile(step, replay=True)
    for index in range(6):
        monkeypatch.setitem(globals(), "SCALE", 1.0 + index)
        if fails:
            with pytest.raises(ValueError) as raised:
                compiled(torch.ones(1).to("xla"))
            assert type(raised.value.args[0]) is float
        else:
            compiled(torch.ones(1).to("xla"))
        if name != "set":  # of several
            assert get() == 2.0 + 2 * index
        assert type(get()) is float
