"""The end of a step starts what was recorded, then makes the calls that waited for it."""

import threading
from collections.abc import Iterator

import pytest
import torch

from torch_xla._engine.metrics import counters
from torch_xla._engine.step import end_of_step
from torch_xla._engine.step.pending_graph import is_pending
from torch_xla._engine.tensor.device import device_at


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    end_of_step.end_step()
    yield
    end_of_step._closures.clear()
    end_of_step._background.clear()


def test_a_step_starts_what_was_recorded_and_is_counted() -> None:
    before = counters.value_of("MarkStep") or 0
    x = torch.ones(3, device="xla") + 1
    end_of_step.end_step()
    assert not is_pending(x) and counters.value_of("MarkStep") == before + 1
    y = x + 1
    end_of_step.start_recorded(device_at(0), wait=True)
    assert not is_pending(y) and counters.value_of("MarkStep") == before + 1  # the step goes on


def test_closures_run_in_order_behind_the_program_and_what_they_queue_waits_for_the_next_step() -> None:
    x, seen = torch.ones(3, device="xla") + 1, []

    def first(number: int) -> None:
        seen.append((number, is_pending(x)))
        end_of_step.add_closure(seen.append, ("next step",), False)

    end_of_step.add_closure(first, (1,), False)
    end_of_step.add_closure(seen.append, ("second",), False)
    end_of_step.end_step()
    assert seen == [(1, False), "second"]
    end_of_step.end_step()
    assert seen[2:] == ["next step"] and not end_of_step._closures


def test_a_closure_that_fails_leaves_those_behind_it_for_the_next_step() -> None:
    seen: list[int] = []
    end_of_step.add_closure(int, ("no number",), False)
    end_of_step.add_closure(seen.append, (1,), False)
    with pytest.raises(ValueError, match="no number"):
        end_of_step.end_step()
    assert seen == []
    end_of_step.end_step()
    assert seen == [1]


def test_in_the_background_a_closure_sees_its_arguments_as_they_were_at_the_end_of_the_step() -> None:
    x, go, seen = torch.ones(3, device="xla"), threading.Event(), []

    def look(value: torch.Tensor, others: list[torch.Tensor]) -> None:
        assert go.wait(60)
        seen.extend([threading.current_thread() is threading.main_thread(), value.tolist(), others[0] is x])

    end_of_step.add_closure(look, (x, [x]), True)
    end_of_step.end_step()
    x.add_(5)
    end_of_step.end_step()
    go.set()
    end_of_step.wait_for_closures()
    assert seen == [False, [1, 1, 1], True] and x.tolist() == [6, 6, 6]


def test_what_fails_in_the_background_is_raised_at_a_later_step_once() -> None:
    end_of_step.add_closure(int, ("no number",), True)
    with pytest.raises(ValueError, match="no number"):
        end_of_step.end_step()  # this one, if the call has failed by then
        end_of_step.wait_for_closures()
    end_of_step.wait_for_closures()
    end_of_step.end_step()


def test_a_step_of_one_device_runs_no_closures() -> None:
    seen: list[int] = []
    end_of_step.add_closure(seen.append, (1,), False)
    end_of_step.mark(device_at(0), wait=True)
    assert seen == []
    end_of_step.end_step()
    end_of_step.wait_for_devices([device_at(0)])
    end_of_step.wait_for_devices()
    assert seen == [1]
