"""Memory that is to be divided so stays divided so, however it is written, for as long as it lives."""

import gc

import pytest
import torch

from tests.support import costs
from tests.support.four_behind_one import COLUMNS, ROWS, on
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.ir.tape import Value
from torch_xla._engine.lowering.machinery.jax_sharding import of_array
from torch_xla._engine.sharding import addressable_shards
from torch_xla._engine.step.sync import sync_device
from torch_xla._engine.tensor import sharding_annotations
from torch_xla._engine.tensor.device import Device
from torch_xla._engine.tensor.storage import hold, value_of, wrap

X = torch.arange(24.0).view(8, 3)


def lies(tensor: torch.Tensor) -> Sharding | None:
    value = value_of(tensor)
    return of_array(value.buffer, value.device.target)


def test_what_was_said_of_a_storage_is_known_by_those_that_show_all_of_it(device: Device) -> None:
    x = on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    found = sharding_annotations.mark_of(x)
    assert found is not None and found.sharding == ROWS and sharding_annotations.mark_of(x.detach()) is found
    assert sharding_annotations.mark_of(x[1:]) is None
    sharding_annotations.remember(x[1:], COLUMNS)  # a part of a storage is not marked
    assert sharding_annotations.mark_of(x) is found and len(device.marks) == 1
    sharding_annotations.forget(x)
    assert sharding_annotations.mark_of(x) is None and not device.marks


def test_a_mark_goes_with_its_storage(device: Device) -> None:
    x = on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    del x
    gc.collect()
    assert not device.marks


def test_what_is_filled_anew_is_divided_again_at_the_end_of_the_step(device: Device) -> None:
    x, other = on(device, X), on(device, X, COLUMNS)
    sharding_annotations.remember(x, ROWS)
    sync_device(device)
    assert lies(x) == ROWS and x.cpu().equal(X)
    x.copy_(other)
    sync_device(device)
    assert lies(x) == ROWS and lies(other) == COLUMNS and x.cpu().equal(X)
    x.data = other.detach() * 2  # another storage
    sync_device(device)
    assert sharding_annotations.mark_of(x) is None and x.cpu().equal(X * 2)


@pytest.mark.parametrize("size", [(8, 3), (5, 3)], ids=["even", "uneven"])
def test_the_parts_of_what_was_written_are_those_of_the_mark_before_the_step_ends(
    size: tuple[int, int], device: Device
) -> None:
    x = on(device, torch.zeros(size), ROWS)
    sharding_annotations.remember(x, ROWS)
    host = torch.arange(float(size[0] * size[1])).view(size)
    hold(x, value_of(on(device, host, COLUMNS)))  # computed, with another sharding
    for written in (host, host + 1):
        found = addressable_shards.local_shards(x)
        assert [tuple(each.padded.shape) for each in found] == [(-(-size[0] // 2), 3)] * 4 and lies(x) == ROWS
        assert all(each.data.equal(written[each.indices]) for each in found)
        hold(x, value_of(on(device, host, COLUMNS) + 1))  # recorded, and nothing said of it
    tape = device.tape
    sharding_annotations.keep_now(x)
    count = len(tape.code)
    sharding_annotations.keep_now(x)
    assert len(tape.code) == count


def test_the_parts_of_memory_that_nobody_wrote_are_those_of_the_mark(device: Device) -> None:
    x = wrap(Value(value_of(on(device, X)).spec, device, None, -1))
    sharding_annotations.remember(x, ROWS)
    assert value_of(x).state == "empty"
    found = addressable_shards.local_shards(x)
    assert [tuple(each.data.shape) for each in found] == [(4, 3)] * 4 and lies(x) == ROWS
    assert not x.cpu().any()


def test_one_of_several_processes_moves_nothing_by_itself(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    hold(x, value_of(on(device, X, COLUMNS)))  # computed, with another sharding
    value = value_of(x)
    several = property(lambda self: frozenset((0, 1)))
    monkeypatch.setattr(type(device.spread), "processes", several)
    found = addressable_shards.local_shards(x)
    assert value_of(x) is value and lies(x) == COLUMNS
    assert all(each.data.equal(X[each.indices]) for each in found)


def test_nothing_is_done_for_what_lies_as_it_should(device: Device) -> None:
    x = on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    sharding_annotations.keep(device)
    value = value_of(x)
    sharding_annotations.keep(device)
    assert value_of(x) is value and not device.tape.code


def test_a_division_is_planned_once_for_all_values_of_a_form(device: Device) -> None:
    value, other = (value_of(on(device, X, ROWS)) for _ in range(2))
    sharding_annotations.constrained(value, ROWS)
    begin = len(device.tape.code)
    sharding_annotations.constrained(other, ROWS)
    sharding_annotations.constrained(value, ROWS)
    plans = [entry for entry in device.tape.code if isinstance(entry, Plan)]
    assert len(plans) == 3 and len({*map(id, plans)}) == 1 and begin == 3

    def divide() -> None:
        sharding_annotations.constrained(value, ROWS)
        if len(device.tape.code) > 1000:
            device.tape = device.new_tape()
            value.tape = None

    assert costs.in_calls(divide) < 130  # 57 on an idle machine; a step does it for each parameter


def test_values_are_moved_and_constrained_without_a_change_of_elements(device: Device) -> None:
    x = on(device, X, ROWS)
    value = sharding_annotations.moved(value_of(x), COLUMNS)
    assert of_array(value.buffer, device.target) == COLUMNS and value.spec.size == (8, 3)
    assert of_array(value.buffer, device.target) != lies(x) == ROWS
    y = x * 2
    y.untyped_storage().value = sharding_annotations.constrained(value_of(y), COLUMNS)  # type: ignore[attr-defined]
    sync_device(device)
    assert lies(y) == COLUMNS and y.cpu().equal(X * 2)


def test_several_processes_divide_the_same_whatever_of_it_they_have_collected(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding_annotations, "_divided", {})

    def recorded(ending: str) -> tuple[object, ...]:
        x, other = on(device, X, ROWS), on(device, X, ROWS)
        for tensor in (x, other):
            sharding_annotations.remember(tensor, ROWS)
            tensor.mul_(2)
        cycle: list[object] = [x]
        cycle.append(cycle)
        if ending != "held":
            del x, tensor
        if ending == "garbage":
            del cycle
        elif ending == "gone":
            cycle.clear()
        sharding_annotations._keep_alike(device)
        code = (*device.tape.code,)
        sync_device(device)
        assert lies(other) == ROWS and other.cpu().equal(X * 2)
        return code

    gc.disable()
    try:
        codes = [recorded(ending) for ending in ("garbage", "gone", "held", "garbage", "gone", "held")]
    finally:
        gc.enable()
    assert codes[0] == codes[1] and len(set(codes)) == 2
    assert codes[2:] == [codes[2]] * 4


def test_a_finalizer_that_reads_moves_no_value_into_another_storage(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read operations leave the tape, and the rest has other slots on the next one."""
    monkeypatch.setattr(sharding_annotations, "_divided", {})

    class Reading:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.itself = tensor, self

        def __del__(self) -> None:
            assert self.tensor.sum().item() == 2 * X.sum()

    x, other = on(device, X, ROWS), on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    gc.disable()
    try:
        Reading(other * 2)
        five, six = other * 5, other * 6
        x.copy_(six)
        sharding_annotations._keep_alike(device)
    finally:
        gc.enable()
    sync_device(device)
    assert x.cpu().equal(X * 6) and lies(x) == ROWS and five.cpu().equal(X * 5)


@pytest.mark.parametrize("is_held", [True, False])
def test_several_processes_move_nothing_that_is_garbage(
    device: Device, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have collected it, and moves nothing."""
    moved: list[Sharding | None] = []
    move = sharding_annotations.moved
    monkeypatch.setattr(
        sharding_annotations, "moved", lambda value, sharding: (moved.append(sharding), move(value, sharding))[1]
    )
    x = on(device, X, ROWS)
    sharding_annotations.remember(x, ROWS)
    x.untyped_storage().value = value_of(on(device, X, COLUMNS))  # type: ignore[attr-defined]
    cycle: list[object] = [x]
    cycle.append(cycle)
    gc.disable()
    try:
        if not is_held:
            del x
        del cycle
        sharding_annotations._keep_alike(device)
    finally:
        gc.enable()
    assert moved == [ROWS] * is_held and len(device.marks) == is_held
    if is_held:
        assert lies(x) == ROWS and x.cpu().equal(X)
        sharding_annotations._keep_alike(device)  # its sharding is correct now
        assert moved == [ROWS]
