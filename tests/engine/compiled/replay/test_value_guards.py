"""Numbers of arguments that the host knows are looked at in a replay as they are in recording."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compiled.replay.value_guards import Checked
from torch_xla._engine.tensor.host_known_values import Asked


def replays() -> int:
    return met.counter_value("ReplayedStep") or 0


numbers = st.lists(st.integers(-4, 6), min_size=1, max_size=5)


@given(st.lists(numbers, max_size=4), numbers)
def test_of_what_counts_by_itself_all_is_admitted_that_can_be_taken_if_what_passed_was(
    passed: list[list[int]], asked: list[int]
) -> None:
    checked = Checked(0, {Asked.EACH})
    for each in passed:
        checked.passed(np.array(each))
    if checked.admits(np.array(asked)):
        seen = {number for each in passed for number in each}
        for can_be in (  # what operators ask
            lambda n: -3 <= n < 5,
            lambda n: 0 <= n < 5,
            lambda n: n != 0,
            lambda n: 0 <= n < 5 or n == -4,
        ):
            assert all(map(can_be, asked)) or not all(map(can_be, seen))
    for each in passed:
        assert checked.admits(np.array(each))


def test_what_counts_together_or_decides_must_be_the_same() -> None:
    one, other = np.array([1, 2]), np.array([2, 1])
    together, decides = Checked(0, {Asked.EACH, Asked.TOGETHER}), Checked(0, {Asked.DECIDES})
    for each in (together, decides):
        assert not each.admits(one)
        each.passed(one)
        assert each.admits(one) and not each.admits(other)
        each.passed(other)
    assert together.admits(other) and together.admits(None)
    assert not decides.admits(other) and not decides.admits(None)  # the replay was made from the first


TABLE, GRID = torch.ones(3, 2), torch.arange(12.0).reshape(3, 4)
LOGITS = torch.linspace(0.0, 1.0, 6).reshape(2, 3)

CALLS: dict[str, tuple[Callable[..., torch.Tensor], list[int], list[int]]] = {
    "embedding": (lambda x, table, *_: F.embedding(x, table), [0, 1], [0, 7]),
    "index": (lambda x, _, grid, *__: grid[x], [0, 2], [-5, 0]),
    "gather": (lambda x, _, grid, *__: grid.gather(0, x[None]), [1, 2], [3, 0]),
    "division": (lambda x, _, grid, *__: grid[0, :2].long() // x, [1, -2], [0, 1]),
    "loss": (lambda x, *_, logits: F.cross_entropy(logits, x), [2, -100], [-5, 1]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("asked", [None, True], ids=["by itself", "asked"])
def test_what_recording_refuses_is_refused_where_it_is_replayed(name: str, asked: bool | None) -> None:
    body, good, bad = CALLS[name]
    on_device = [each.to("xla") for each in (TABLE, GRID)]
    logits = LOGITS.to("xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        return body(x, *on_device, **({"logits": logits} if name == "loss" else {}))

    compiled = torch_xla.compile(step, replay=asked)
    for _ in range(25):
        compiled(torch.tensor(good).to("xla"))
    before = replays()
    with pytest.raises((IndexError, RuntimeError)) as expected:
        step(torch.tensor(bad).to("xla"))
    with pytest.raises(type(expected.value)) as found:
        compiled(torch.tensor(bad).to("xla"))
    assert str(found.value) == str(expected.value) and before
    compiled(torch.tensor(good).to("xla"))
    assert replays() == before + 1  # the replay is as good as it was


def test_what_decides_the_size_of_a_result_decides_it_anew() -> None:
    step = torch_xla.compile(torch.repeat_interleave)
    x = torch.arange(3.0)
    for repeats in [[1, 2, 1]] * 25 + [[2, 2, 2], [0, 1, 0], [0, 0, 4], [1, 2, 1]]:
        found = step(x.to("xla"), torch.tensor(repeats).to("xla"))
        torch.testing.assert_close(found.cpu(), torch.repeat_interleave(x, torch.tensor(repeats)))
    assert replays() >= 4 and step.why_recorded == ""
    on_device = torch.tensor([0, 1, 0]).to("xla") + 1  # which the host does not know
    assert step(x.to("xla"), on_device).tolist() == [0, 1, 1, 2]


def test_numbers_that_pass_are_replayed_from_then_on() -> None:
    table = torch.arange(20.0).reshape(10, 2).to("xla")
    step = torch_xla.compile(lambda x: F.embedding(x, table), replay=True)
    for index in range(40):
        rows = torch.tensor([index * 7 % 10, index * 3 % 10])
        assert step(rows.to("xla")).tolist() == table.cpu()[rows].tolist()
    assert replays() >= 30
