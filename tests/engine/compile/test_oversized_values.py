"""A value that is far larger than the memory is refused at once, though the program would not store it."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import torch_xla
from torch_xla._engine.compile import oversized_values
from torch_xla.experimental.eager import eager_mode_context

Make = Callable[[], torch.Tensor]

HUGE = 2**40
WIDE = 2**20


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="xla")


HUGE_VALUES: dict[str, Make] = {
    "arange": lambda: torch.arange(HUGE, device="xla").sum(),
    "broadcast": lambda: (ones(WIDE, 1) + ones(WIDE)).sum(),
    "cat": lambda: torch.cat([ones(WIDE).expand(WIDE, WIDE)] * 2).sum(),
    "cdist": lambda: torch.cdist(ones(WIDE, 2), ones(WIDE, 2)).sum(),
    "contiguous": lambda: ones(1).expand(HUGE).contiguous(),
    "empty": lambda: torch.empty(HUGE, device="xla").sum(),
    "eye": lambda: torch.eye(WIDE, device="xla").sum(),
    "full": lambda: torch.full((HUGE,), 2.0, device="xla"),
    "one_hot": lambda: functional.one_hot(torch.arange(WIDE, device="xla"), WIDE).sum(),
    "outer": lambda: torch.outer(ones(WIDE), ones(WIDE)).sum(),
    "pad": lambda: functional.pad(ones(3), (0, HUGE)).sum(),
    "randn": lambda: torch.randn(HUGE, device="xla").sum(),
    "tril": lambda: ones(WIDE, WIDE).tril().sum(),
    "truths": lambda: torch.zeros(HUGE * 4, dtype=torch.bool, device="xla").any(),
}


def recorded(make: Make) -> Make:
    return make


def eagerly(make: Make) -> Make:
    def made() -> torch.Tensor:
        with eager_mode_context(True):
            return make()

    return made


def by_openxla(make: Make) -> Make:
    compiled: Make = torch.compile(make, backend="openxla")
    return compiled


WAYS = pytest.mark.parametrize("way", [recorded, eagerly, by_openxla])


def refusal_of(make: Make) -> str:
    """Return the error of a step, when nothing holds what the step would have made."""
    held = None
    try:
        held = make()
        torch_xla.sync()
    except torch.OutOfMemoryError as error:
        return str(error)
    finally:
        del held
    return "not refused"


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("make", HUGE_VALUES.values(), ids=HUGE_VALUES)
def test_a_value_that_no_host_could_hold_is_refused_at_once(make: Make, way: Callable[[Make], Make]) -> None:
    assert refusal_of(way(make)).startswith("XLA is out of memory. There is no room for")


@WAYS
def test_the_refusal_names_the_value_and_its_line(way: Callable[[Make], Make], monkeypatch: pytest.MonkeyPatch) -> None:
    def total() -> torch.Tensor:
        return torch.full((3 << 20,), 2.0, device="xla").sum()

    monkeypatch.setattr(oversized_values, "host_memory", lambda: 3_000_000)
    said = refusal_of(way(total))
    assert "[3145728] float32 takes 12.58 MB, in " in said and "aten::sum" in said
    assert "test_oversized_values.py:" in said and "more than 4 times the 3.00 MB of this machine" in said
    assert "Nothing was started, and what the step wrote to tensors is undone" in said


def test_what_is_computed_in_parts_may_be_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized_values, "host_memory", lambda: 3_200_000)
    assert torch.full((3 << 20,), 1.5, device="xla").sum().item() == 4.5 * 2**20
    # Of these, XLA makes the elements alone that are read.
    assert torch.full((5 << 20,), 1.5, device="xla")[3:5].tolist() == [1.5, 1.5]
    assert torch.full((5 << 20,), 1.5, device="xla").expand(4, -1)[2, 7].item() == 1.5


def test_a_refused_step_runs_where_nobody_asks_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized_values, "host_memory", lambda: 1_000_000)
    kept = ones(3).add_(1)
    total = torch.full((3 << 20,), 0.5, device="xla").sum() + kept
    for _ in range(2):  # it stays refused
        with pytest.raises(torch.OutOfMemoryError):
            torch_xla.sync()
    monkeypatch.setenv("XLA_CHECK_MEMORY", "0")
    assert total.tolist() == [1.5 * 2**20 + 2] * 3 and kept.tolist() == [2] * 3


def test_what_was_dropped_is_not_computed_by_the_program_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized_values, "host_memory", lambda: 1_000_000)
    kept = ones(3).add_(1)
    for way in (recorded, by_openxla):
        assert "aten::sum" in refusal_of(way(lambda: torch.full((3 << 20,), 0.5, device="xla").sum()))
        torch_xla.sync()
    assert kept.tolist() == [2] * 3
