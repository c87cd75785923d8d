"""Processes that reach the same values decide alike, whatever of their garbage was collected."""

import itertools
from collections.abc import Iterable, Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.atomic import run_through
from torch_xla._engine.ir.tape import Value
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.step.common_liveness import Liveness, covers

SMALL, LARGE = 1 << 10, 1 << 20  # elements of four bytes


def values_of(sizes: Iterable[int]) -> list[Value]:
    return [Value(spec_of((size,), (1,), torch.float32), None, None, 0) for size in sizes]


class Process:
    """One of several that run equal steps."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.liveness, self.values = Liveness(), values_of(sizes)
        self.collected = 0

    def step(self, reached: int, garbage: int = 0, old: int = 0) -> bytes:
        """Return the values that count as referenced; `old` garbage is found only by a full collection."""
        count = len(self.values)
        answer = None
        for held in (reached | garbage | old, reached | old):
            answer = answer or self.liveness.whatever_is_garbage(as_bytes(held, count))
        if answer is None:
            self.collected += 1
            answer = self.liveness.of_reachable(as_bytes(reached, count), self.values)
        run_through(self.liveness.learned(answer, self.values))
        assert covers(answer, as_bytes(reached, count))
        return answer


def as_bytes(held: int, count: int) -> bytes:
    return bytes(held >> slot & 1 for slot in range(count))


def test_all_orders_of_what_is_reached_and_all_garbage_decide_alike() -> None:
    for sizes in ((SMALL, SMALL, LARGE), (LARGE, LARGE, SMALL)):
        for steps in itertools.product(range(8), repeat=4):
            tidy, untidy = Process(sizes), Process(sizes)
            for reached in steps:
                assert tidy.step(reached) == untidy.step(reached, old=7), steps


@given(
    st.lists(st.sampled_from([1, SMALL, LARGE]), min_size=1, max_size=6),
    st.lists(st.tuples(*[st.integers(0, 63)] * 5), max_size=30),
)
def test_processes_with_other_garbage_decide_alike(sizes: list[int], steps: list[tuple[int, ...]]) -> None:
    all_ = (1 << len(sizes)) - 1
    one, other = Process(sizes), Process(sizes)
    for reached, *garbage in steps:
        first, first_old, second, second_old = (each & all_ for each in garbage)
        assert one.step(reached & all_, first, first_old) == other.step(reached & all_, second, second_old)
        assert len(one.liveness.state.sets) <= 9


def test_what_is_small_and_held_in_some_steps_is_computed_in_all() -> None:
    process = Process((SMALL, SMALL))
    assert [process.step(reached) for reached in (1, 1, 1, 3, 1, 3)] == [b"\1\0"] * 3 + [b"\1\1"] * 3
    assert process.collected == 3


def test_what_is_large_and_held_in_some_steps_is_computed_in_those() -> None:
    process = Process((SMALL, LARGE))
    answers = [process.step(reached) for reached in (3, 1, 1, 3, 1, 3)]
    assert answers == [b"\1\1", b"\1\0", b"\1\0", b"\1\1", b"\1\0", b"\1\1"]
    assert process.collected == 4  # the first two times, and where the large one is held


def test_young_garbage_of_each_step_is_not_looked_for_among_all() -> None:
    process = Process((SMALL, LARGE))
    for _ in range(6):
        assert process.step(1, garbage=2) == b"\1\0"
    assert process.collected == 2


def test_values_recorded_meanwhile_change_nothing() -> None:
    values = values_of((SMALL, LARGE))
    liveness = Liveness()
    for _ in range(2):
        run_through(liveness.learned(b"\1\0", [*values, *values]))
    assert liveness.whatever_is_garbage(b"\1\0") == b"\1\0" and liveness.whatever_is_garbage(b"\0\1") is None
