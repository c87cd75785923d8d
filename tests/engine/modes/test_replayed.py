"""A function is recorded until three calls did the same, and says why as long as it is."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.modes import replayed
from torch_xla._engine.modes.region import Region
from torch_xla._engine.modes.replayed import ENOUGH, MOST_KINDS, Replayed


def tensor(*numbers: float) -> torch.Tensor:
    x = torch.tensor(numbers).to("xla")
    torch_xla.sync()
    return x


def of(function: Callable[..., Any]) -> Replayed:
    return Replayed(function, Region("", False, None))


def replays() -> int:
    return met.counter_value("ReplayedStep") or 0


def test_three_calls_in_a_row_make_a_replay() -> None:
    step, x = of(lambda x: x * 2), tensor(1.0, 2.0)
    assert step.why_recorded == "it was not called yet" and not step.is_replayed
    seen = []
    for number in range(6):
        assert step(x + number).tolist() == [2.0 + 2 * number, 4.0 + 2 * number]
        seen.append((step.is_replayed, step.why_recorded))
    assert [each for each, _ in seen] == [number + 1 >= ENOUGH for number in range(6)]
    assert seen[0][1].startswith("a replay needs 3 calls in a row that do the same, and has seen 1")
    assert seen[ENOUGH - 1][1].startswith("it was the last of 3 calls")
    assert seen[ENOUGH:] == [(True, "")] * (6 - ENOUGH) and replays() == 6 - ENOUGH


def test_it_looks_like_the_function_and_binds_as_one() -> None:
    class Model:
        @of
        def step(self, x: torch.Tensor) -> torch.Tensor:
            """Doubles."""
            return x * 2

    assert Model.step.__name__ == "step" and Model.step.__doc__ == "Doubles."
    model, x = Model(), tensor(1.0)
    assert [model.step(x).item() for _ in range(5)] == [2.0] * 5 and replays() == 2


def test_another_kind_of_arguments_is_recorded_for_itself() -> None:
    step = of(lambda x, n: x * n)
    for _ in range(2):
        for size in (2, 3):
            for _ in range(4):
                assert step(torch.ones(size).to("xla"), size).tolist() == [size] * size
    assert replays() == 2 * 1 + 2 * 4


def test_what_changes_ends_the_replay_and_is_told_once() -> None:
    state = {"scale": 2.0}
    step, x = of(lambda x: x * state["scale"]), tensor(1.0)
    for _ in range(4):
        step(x)
    state["scale"] = 3.0
    with pytest.warns(UserWarning, match=r"is recorded this time: it sees .*|is recorded this time: .*scale"):
        assert step(x).item() == 3.0
    assert "scale" in step.why_recorded and not step.is_replayed
    for _ in range(4):
        assert step(x).item() == 3.0
    assert step.is_replayed


def test_what_never_does_the_same_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "PATIENCE", 3)
    step, x = of(lambda x: x * x.sum().item()), tensor(2.0)
    with pytest.warns(UserWarning, match="is recorded, not replayed: it reads a value on the host"):
        for _ in range(4):
            assert step(x).item() == 4.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(x).item() == 4.0  # once is enough
    assert step.why_recorded.startswith("it reads a value on the host")


def test_arguments_that_can_never_be_replayed_are_told_at_once() -> None:
    step = of(lambda x: x * 2)
    with pytest.warns(UserWarning, match="an argument is a tensor on the CPU: move it to the device before the call"):
        assert step(torch.ones(1)).item() == 2.0
    assert step.why_recorded.startswith("an argument is a tensor on the CPU")


def test_numbers_that_change_from_call_to_call_must_be_tensors() -> None:
    step, x = of(lambda x, n: x * n), tensor(1.0)
    for number in range(MOST_KINDS):
        step(x, number)
    with pytest.warns(
        UserWarning, match=f"with other arguments than the first {MOST_KINDS} kinds: Python numbers that"
    ):
        assert step(x, -1).item() == -1.0
    assert "must be tensors" in step.why_recorded


def test_inside_a_region_it_is_a_part_of_that() -> None:
    step, x = of(lambda x: x * 2), tensor(1.0)
    outer = torch_xla.compile(lambda: step(x) + 1)
    for _ in range(5):
        assert outer().item() == 3.0
    assert replays() == 0 and step.why_recorded == "it was called in another compiled function, and is a part of that"


def test_an_error_leaves_it_as_it_was() -> None:
    fails = [True]

    def function(x: torch.Tensor) -> torch.Tensor:
        if fails[0]:
            raise ZeroDivisionError("mine")
        return x * 2

    step, x = of(function), tensor(1.0)
    with pytest.raises(ZeroDivisionError, match="mine"):
        step(x)
    fails[0] = False
    assert [step(x).item() for _ in range(6)] == [2.0] * 6 and step.is_replayed


def test_a_function_that_reads_the_environment_is_replayed_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FACTOR_OF_A_TEST", "2")

    @torch_xla.compile(replay=True, name="reads the environment")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * int(os.environ.get("A_FACTOR_OF_A_TEST", "1")) + len(os.getenv("NOT_SET_IN_A_TEST", ""))

    x = torch.ones(3, device="xla")
    assert [scaled(x)[0].item() for _ in range(5)] == [2.0] * 5
    assert scaled.is_replayed and not scaled.why_recorded
    monkeypatch.setenv("A_FACTOR_OF_A_TEST", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [scaled(x)[0].item() for _ in range(5)] == [3.0] * 5
