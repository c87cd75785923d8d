"""The state of a device: found by its ordinal, seeded together, refused in a fork, locked in one place."""

import threading
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from tests.support import costs
from tests.support.four_behind_one import ALL, ROWS, on, spread_device
from torch_xla._engine.caching.interning import drop_unused
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.processes import identity
from torch_xla._engine.processes.identity import Place
from torch_xla._engine.runtime import platform
from torch_xla._engine.tensor import device as devices
from torch_xla._engine.tensor.device import LOCK, Device, _TapeOfAFork, empty_plan, let_go, seed_all, uninitialised
from torch_xla._engine.tensor.storage import value_of


@pytest.fixture
def first() -> Iterator[Device]:
    yield devices.device_at(0)
    devices.set_current_index(0)


@pytest.mark.parametrize("name", [None, "xla", "xla:0", torch.device("xla"), torch.device("xla", 0)], ids=str)
def test_a_factory_finds_its_device(name: object, first: Device) -> None:
    assert devices.device_for(name) is first and first in devices.existing_devices()
    assert repr(first) == "<xla:0>" and first.torch_device == torch.device("xla", 0)


def test_an_ordinal_that_is_not_there_is_refused_with_those_that_are(first: Device) -> None:
    count = devices.device_count()
    for refused in (lambda: devices.device_at(count), lambda: devices.set_current_index(count)):
        with pytest.raises(RuntimeError, match=rf"^xla:{count} does not exist: this process has {count} device\(s\), "):
            refused()
    assert devices.current_index() == 0


def test_a_negative_ordinal_changes_nothing_as_on_other_devices(first: Device) -> None:
    torch.accelerator.set_device_index(-1)
    torch.xla.set_device(-1)  # type: ignore[attr-defined]
    with torch.xla.device(-1):  # type: ignore[attr-defined]
        assert devices.current_index() == 0
    assert devices.current_index() == 0 and torch.ones(1, device="xla").device.index == 0


def test_one_seed_gives_each_ordinal_numbers_of_its_own_and_those_that_come_later_too() -> None:
    seed_all(5)
    later = [Device(index) for index in range(3)]
    states = [device.generator.draw() for device in later]
    assert states[0] == 5 and len(set(states)) == 3
    seed_all(6)
    assert [Device(index).generator.draw() for index in range(3)] != states
    seed_all(5)
    assert [Device(index).generator.draw() for index in range(3)] == states


def test_memory_that_nobody_wrote_becomes_zeros_by_one_plan_for_each_form(first: Device) -> None:
    values = [uninitialised((2, 3), (3, 1), torch.int32, first) for _ in range(2)]
    assert values[0].state == "empty"
    assert empty_plan(values[0]) is empty_plan(values[1])
    assert empty_plan(values[0]).outputs == (spec_of((2, 3), (3, 1), torch.int32),)
    assert torch.empty_strided((2, 3), (1, 2), dtype=torch.int32, device="xla").tolist() == [[0] * 3] * 2


def test_the_lock_is_let_go_once_by_who_has_it_and_not_by_others() -> None:
    held: list[bool] = []

    def another() -> None:
        held.append(LOCK.acquire(blocking=False))
        if held[-1]:
            LOCK.release()

    def ask_another() -> bool:
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
        return held.pop()

    LOCK.acquire()
    assert not ask_another()
    let_go()
    assert ask_another()
    let_go()  # it was not acquired
    assert ask_another()


def test_the_tape_of_a_fork_refuses_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "forked", True)
    tape = _TapeOfAFork()
    assert tape.started == 0
    for name in ("code", "append", "values"):
        with pytest.raises(RuntimeError, match="a fork cannot use it. Start processes with `torch.multiprocessing.set"):
            getattr(tape, name)


def test_a_tape_begins_with_what_is_expected(first: Device) -> None:
    tape = first.new_tape(["code"], {0: ("a.py", 1, "f")})
    assert not tape.code and tape.expected == ["code"] and tape.expected_lines == {0: ("a.py", 1, "f")}
    assert tape.placed is None  # one device: values have no sharding


def test_how_a_value_lies_is_worked_out_once_for_all_that_lie_so() -> None:
    with spread_device() as device:
        first, second = (value_of(on(device, torch.zeros(8, 3), ROWS)) for _ in range(2))
        spec = device.placed(first)
        assert spec.sharding == ROWS and device.placed(second) is spec
        assert device.placed(value_of(on(device, torch.zeros(8, 3), ALL))).sharding == ALL
        assert costs.in_calls(lambda: device.placed(first)) < 25  # 6 on an idle machine; a step does it for each input


def test_how_values_lie_is_forgotten_with_their_specs(first: Device) -> None:
    value = value_of(torch.zeros(7, 5, device="xla"))
    torch_xla.sync()
    assert first.placed(value).sharding is None and first.places
    drop_unused()
    assert not first.places


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the second of three on its machine, and has used no device."""
    monkeypatch.setattr(devices, "existing", [])
    monkeypatch.setattr(identity, "_place", Place(4, 6, 1, 3))
    monkeypatch.setattr(identity, "_meeting", None)
    monkeypatch.setattr(devices, "device_count", lambda: 1)
    vars(devices.current).clear()  # what this thread has chosen
    devices.number()
    yield
    monkeypatch.undo()
    devices._first = devices._Current.index = 0
    devices._Current.word = devices.device_word(0)


@pytest.mark.usefixtures("second_of_three")
def test_a_process_of_several_calls_its_device_by_its_number_on_the_machine() -> None:
    assert devices.current_index() == 1 and devices.numbered_count() == 3 and list(devices.ordinals()) == [1]
    own = devices.device_at(1)
    assert (own.index, own.place, own.torch_device) == (1, 0, torch.device("xla", 1))
    assert devices.device_for(torch.device("xla")) is devices.device_for(None) is own
    assert own.generator.state == Device(0).generator.state  # equal seeds give all processes equal numbers
    for index in (0, 2):
        with pytest.raises(RuntimeError, match=rf"xla:{index} is the device of another process.*its device is xla:1"):
            devices.device_at(index)
        assert devices.is_elsewhere(index)
    with pytest.raises(RuntimeError, match=r"xla:3 does not exist: this process has one device, xla:1 \(LOCAL_RANK\)"):
        devices.device_at(3)


@pytest.mark.usefixtures("second_of_three")
def test_a_device_in_use_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    own = devices.device_at(1)
    monkeypatch.setattr(identity, "_place", Place(0, 6, 0, 3))
    devices.number()
    assert devices.device_at(1) is own and devices.current_index() == 1
