"""Which program a tape becomes follows from it and from who holds its values, and is looked up the next time."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from torch_xla._engine.atomic import run_through
from torch_xla._engine.compile import program_cache
from torch_xla._engine.lowering.views.storage_access import READ
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import memory_mappings
from torch_xla._engine.step import schedule
from torch_xla._engine.step.liveness import look
from torch_xla._engine.step.schedule import clear_schedules, counter_name, find
from torch_xla._engine.step.step import Schedule
from torch_xla._engine.tensor.device import device_at


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch_xla.sync()
    clear_schedules()
    yield
    clear_schedules()
    schedule._livenesses.clear()


def three(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.exp(), x.sin(), x.cos()]


def found() -> Schedule:
    device = device_at(0)
    seen = look(device.tape)
    assert seen is not None
    schedule = find(device, device.tape, seen, None)
    assert schedule is not None
    return schedule


def dropped() -> None:
    """Drop the recorded operations without running them."""
    device = device_at(0)
    device.tape = device.new_tape()


def held_at_end(x: torch.Tensor, *which: int, runs: bool = True) -> Schedule:
    made = three(x)
    kept = [made[index] for index in which]
    del made
    result = found()
    result.has_run = runs
    dropped()
    del kept
    return result


def test_equal_tapes_with_equal_holders_have_one_schedule() -> None:
    x = torch.ones(3).to("xla")
    first = held_at_end(x, 0, 1)
    assert held_at_end(x, 0, 1) is first and len(first.cut.outputs) == 2
    assert held_at_end(x, 0, 1, 2) is not first


def test_a_program_that_computes_more_than_is_held_serves_too() -> None:
    x = torch.ones(3).to("xla")
    most = held_at_end(x, 0, 1, 2)
    assert held_at_end(x, 1) is most and len(schedule._schedules) == 1


def test_one_that_did_not_run_serves_only_what_it_was_made_for() -> None:
    x = torch.ones(3).to("xla")
    refused = held_at_end(x, 0, 1, 2, runs=False)
    less = held_at_end(x, 1)
    assert less is not refused and len(less.cut.outputs) == 1
    assert held_at_end(x, 0, 1, 2, runs=False) is refused


def test_the_third_difference_makes_one_that_fits_all() -> None:
    x = torch.ones(3).to("xla")
    schedules = [held_at_end(x, index) for index in range(3)]
    assert [len(each.cut.outputs) for each in schedules] == [1, 1, 3]
    assert held_at_end(x, 0, 2) is schedules[2]


def test_of_a_collective_garbage_decides_nothing_and_is_collected_only_where_it_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "is_common", lambda device, code: True)
    device, x = device_at(0), torch.ones(3).to("xla")

    def looked_up(*which: int, is_exact: bool = False) -> Schedule | None:
        made = three(x)
        kept = [made[index] for index in which]
        del made
        seen = look(device.tape)
        assert seen is not None and kept
        result = find(device, device.tape, seen, None, is_exact)
        if result is not None:
            assert result.liveness is not None
            run_through(result.liveness.learned(result.live, seen.values))
        dropped()
        return result

    assert looked_up(0) is None
    one = looked_up(0, is_exact=True)
    assert one is not None and looked_up(0) is None  # seen once
    assert looked_up(0, is_exact=True) is one and looked_up(0) is one
    assert looked_up(0, 1) is None  # the second may be held by garbage
    two = looked_up(0, 1, is_exact=True)
    assert two is not None and len(two.cut.outputs) == 2
    assert looked_up(0, 1) is two and looked_up(0) is two and looked_up(1) is two  # whatever of it is garbage
    clear_schedules()
    three_of_them = looked_up(0, 1, 2, is_exact=True)
    assert three_of_them is not None and looked_up(2) is three_of_them  # programs may go, what is known stays


def test_what_was_compiled_for_a_tape_runs_though_garbage_was_collected_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "is_common", lambda device, code: True)
    device, x = device_at(0), torch.ones(3).to("xla")
    made = three(x)
    first = look(device.tape)
    assert first is not None
    compiled = find(device, device.tape, first, None, is_exact=True)
    assert compiled is not None
    del made[0]
    again = look(device.tape)
    assert again is not None and find(device, device.tape, again, None) is None
    assert find(device, device.tape, again, None, compiled=compiled.program) is compiled
    dropped()


def test_a_tape_that_is_too_long_is_relieved_of_the_same_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    device, x = device_at(0), torch.ones(3).to("xla")
    kept = three(x)
    seen = look(device.tape)
    assert seen is not None and find(device, device.tape, seen, ()) is not None
    monkeypatch.setattr(schedule, "is_common", lambda device, code: True)
    assert find(device, device.tape, seen, ()) is None
    relieved = find(device, device.tape, seen, (), is_exact=True)
    assert relieved is not None and len(relieved.kept) == len(kept)
    dropped()


def test_a_sync_tells_how_often_it_collected_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "is_common", lambda device, code: True)
    x = torch.ones(3).to("xla")

    def collected() -> tuple[int, int]:
        return counters.value_of("CollectedYoungGarbage") or 0, counters.value_of("CollectedGarbage") or 0

    found = []
    for count in (1, 1, 1, 2, 1, 2):
        young, full = collected()
        kept = three(x)[:count]
        torch_xla.sync()
        assert len(kept) == count and all(len(each.tolist()) == 3 for each in kept)
        del kept
        found.append((collected()[0] - young, collected()[1] - full))
    assert found[1:] == [(1, 1), (0, 0), (1, 1), (0, 0), (0, 0)]  # what is held in some steps is computed in all


def test_young_garbage_does_not_make_all_be_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "is_common", lambda device, code: True)
    x = torch.ones(3).to("xla")
    gc.disable()
    try:
        for step in range(4):
            before = counters.value_of("CollectedGarbage") or 0
            made = three(x)
            cycle: list[object] = [made.pop()]
            cycle.append(cycle)
            del cycle
            torch_xla.sync()
            assert ((counters.value_of("CollectedGarbage") or 0) > before) is (step < 2), step
            del made
    finally:
        gc.enable()


def test_what_would_be_given_away_does_not_serve_who_holds_it() -> None:
    x = torch.ones(1024, device="xla") * 3
    torch_xla.sync()
    y = x + 1
    del x
    taking = found()
    assert taking.program is not None and taking.program.donated == (0,)
    assert taking.serves(taking.live) and not taking.serves(b"\1" * len(taking.live))
    del y


def test_a_tape_that_nobody_holds_anything_of_has_no_program() -> None:
    torch.ones(3).to("xla").exp()
    nothing = found()
    assert nothing.program is None and not nothing.cut.outputs
    dropped()


def test_an_evaluation_counts_what_it_runs() -> None:
    x = torch.ones(3).to("xla")
    x.exp_().exp_()
    torch_xla.sync()
    assert counters.value_of("xla::exp") == 2 and counters.value_of("SyncTensorsToData") == 1


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (torch.ops.aten.add.Tensor, "xla::add"), (torch.ops.aten.exp_.default, "xla::exp_"),
        (torch.ops.prims.convert_element_type.default, "xla::prims"), (READ, "xla::" + READ.partition("::")[2]),
        ("own::thing", "xla::thing"),
    ],
    ids=range(5),
)  # fmt: skip
def test_operations_are_counted_by_the_name_of_their_operator(op: object, name: str) -> None:
    assert counter_name(op) == name


@pytest.mark.filterwarnings("ignore:Compiled code takes so many of the memory mappings")
def test_programs_are_gone_where_mappings_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_schedules()
    program_cache.clear()  # half of all entries leave, and those of other tests would leave first
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    programs = []
    for number in range(16):
        monkeypatch.setattr(memory_mappings, "are_scarce", lambda last=number == 15: last)
        y = x
        for _ in range(number + 1):
            y = y.sin()
        torch_xla.sync(wait=True)
        programs.append(weakref.ref(device_at(0).last_schedule.program))  # type: ignore[union-attr, arg-type]
    gone = [program() is None for program in programs]
    assert all(gone[:7]) and not any(gone[8:])


def test_forms_of_one_operator_are_counted_under_its_name() -> None:
    names = ["_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats", "native_batch_norm_backward"]
    assert [counter_name(f"aten.{name}") for name in names] == [
        "xla::native_batch_norm",
        "xla::native_batch_norm",
        "xla::native_batch_norm_backward",
    ]
