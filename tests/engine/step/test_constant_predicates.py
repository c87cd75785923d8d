"""Truth values that follow from the program alone are read beside the tape, and are those of the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.metrics import events


def read() -> int:
    return int(met.counter_value("TruthsKnown") or 0)


def compiled() -> int:
    data = met.metric_data("CompileTime")
    return int(data[0]) if data else 0


def counts_up(positions: torch.Tensor) -> torch.Tensor:
    return (torch.diff(positions, dim=-1) == 1).all()


def step(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(8, device=x.device).unsqueeze(0) + 3
    return x * 2 if counts_up(positions) else x * 3


def test_the_step_stays_one_program_and_is_replayed() -> None:
    x = torch.randn(4, device="xla")
    torch_xla.sync()
    seen: list[Any] = []
    events.listen(seen.append)
    try:
        for _ in range(3):
            before, known, reads = compiled(), read(), met.counter_value("aten::_local_scalar_dense")
            y = step(x)
            assert read() == known + 1 and met.counter_value("aten::_local_scalar_dense") == reads
            assert not any(isinstance(each, events.Evaluation | events.Transfer) for each in seen)
            torch_xla.sync()
            assert sum(isinstance(each, events.Evaluation) for each in seen) == 1
            seen.clear()
    finally:
        events.unlisten(seen.append)
    assert compiled() == before
    torch.testing.assert_close(y.cpu(), x.cpu() * 2)
    replayed = torch_xla.compile(step, replay=True)
    for _ in range(5):
        known = read()
        torch.testing.assert_close(replayed(x).cpu(), x.cpu() * 2)
    assert read() == known  # nothing is asked any more


@pytest.mark.parametrize(
    "truth",
    [
        lambda x: (x > 0).all(),
        lambda x: (torch.rand(3, device="xla") >= 0).all(),
        lambda x: torch.ones(3, device="xla").sum() == x.sum(),
    ],
    ids=["memory", "a draw", "both"],
)
def test_what_depends_on_more_is_evaluated(truth: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    known = read()
    assert truth(x) and read() == known


def test_an_assertion_on_the_tape_is_raised_where_a_value_is_read() -> None:
    torch._assert_async(torch.zeros((), device="xla"), "nothing is there")
    with pytest.raises(RuntimeError, match="nothing is there"):
        bool(torch.ones(2, device="xla").sum() == 2)
    torch_xla.sync()


def test_numbers_of_the_program_count() -> None:
    for number in (1.0, 2.0, -0.0, 0.0, 3.0):
        above = torch.full((2,), number, device="xla") > 1.5
        assert bool(above.all()) is (number > 1.5)
        sign = torch.signbit(torch.full((), number, device="xla"))
        assert bool(sign) is (str(number)[0] == "-")


def test_a_loop_that_counts_on_the_device_compiles_a_few_programs() -> None:
    torch_xla.sync()
    before, rounds, count = compiled(), 0, torch.zeros((), device="xla", dtype=torch.int64)
    while count < 40:
        count = count + 1
        rounds += 1
    assert rounds == count.item() == 40
    assert compiled() - before <= 3  # of the first round, of the second with it, and of all others


def test_other_questions_of_what_was_asked_before_leave_the_step_whole() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(8, device=x.device)
        for _ in range(2):  # as of the masks of two kinds of layers
            x = x * 2 if counts_up(positions) else x * 3
        return x

    x = torch.randn(4, device="xla")
    torch_xla.sync()
    for _ in range(2):
        known = read()
        y = asks(x)
        assert read() == known + 2
        torch_xla.sync()
    torch.testing.assert_close(y.cpu(), x.cpu() * 4)


def test_equal_questions_of_a_step_are_one_program() -> None:
    total = torch.zeros(4, device="xla")
    torch_xla.sync()
    for _ in range(2):
        before, known = compiled(), read()
        for _ in range(20):
            total = total + step(torch.ones(4, device="xla"))
        assert read() == known + 20
        torch_xla.sync()
    assert compiled() == before
    torch.testing.assert_close(total.cpu(), torch.full((4,), 80.0))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["+", "*", "diff", "cumsum", "flip"]), max_size=4),
    st.integers(2, 6),
    st.sampled_from(["==", "<"]),
    st.integers(-3, 9),
)
def test_they_are_those_of_the_cpu(steps: list[str], length: int, compare: str, bound: int) -> None:
    def truth(device: str) -> bool:
        values = torch.arange(length, device=device)
        for each in steps:
            if each == "+":
                values = values + bound
            elif each == "*":
                values = values * 2
            elif each == "diff" and len(values) > 1:
                values = torch.diff(values)
            elif each == "cumsum":
                values = values.cumsum(0)
            elif each == "flip":
                values = values.flip(0)
        return bool((values == bound).any() if compare == "==" else (values < bound).all())

    torch_xla.sync()
    known = read()
    assert truth("xla") is truth("cpu") and read() == known + 1
