"""TPU chips are found on the PCI bus; without chips, no server is asked."""

import importlib.util
import os
from pathlib import Path

import pytest

from torch_xla._engine.processes.identity import Place
from torch_xla._engine.runtime import tpu_chips


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tpu_chips, "_PCI_DEVICES", tmp_path)
    return tmp_path


def plug_in(bus: Path, vendor: str, device: str, count: int = 1) -> None:
    for _ in range(count):
        slot = bus / f"0000:00:{len(list(bus.iterdir())):02x}.0"
        slot.mkdir()
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "device").write_text(f"{device}\n")


def test_a_machine_without_a_tpu_has_no_devices_and_says_so(bus: Path) -> None:
    plug_in(bus, "0x10de", "0x2335", count=8)
    assert (tpu_chips.chip_count(), tpu_chips.device_count()) == (0, 0) and not tpu_chips.is_usable()
    for ask in (tpu_chips.generation, tpu_chips.cores_per_chip, tpu_chips.environment):
        with pytest.raises(OSError, match="this machine has no TPU on its PCI bus"):
            ask()


@pytest.mark.parametrize(
    ("device", "generation", "devices"), [("0x0027", 3, 8), ("0x005e", 4, 4), ("0x0063", 5, 4), ("0x006f", 6, 4)]
)
def test_chips_are_counted_and_their_generation_told(bus: Path, device: str, generation: int, devices: int) -> None:
    plug_in(bus, "0x1ae0", device, count=4)
    plug_in(bus, "0x1ae0", "0x0042")  # another device of the same vendor
    assert tpu_chips.chip_count() == 4
    assert tpu_chips.generation() == generation
    assert tpu_chips.device_count() == devices
    assert tpu_chips.is_usable() == (importlib.util.find_spec("libtpu") is not None)


def test_the_answer_of_the_metadata_server_is_read_line_by_line() -> None:
    text = "ACCELERATOR_TYPE: 'v4-8'\nTPU_PROCESS_BOUNDS: '1,1,1'\nWORKER_ID: 0\n"
    assert tpu_chips.parse_environment(text) == {
        "ACCELERATOR_TYPE": "v4-8",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "WORKER_ID": "0",
    }


def test_each_process_of_a_machine_gets_the_chip_of_its_number(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_VISIBLE_CHIPS", raising=False)
    plug_in(bus, "0x1ae0", "0x005e", count=4)
    assert tpu_chips.process_count() == 4
    shares = [tpu_chips.share_of(Place(index, 4, index, 4)) for index in range(4)]
    assert shares[2] == {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477,localhost:8478,localhost:8479",
        "TPU_PROCESS_PORT": "8478",
        "TPU_VISIBLE_CHIPS": "2",
        "CLOUD_TPU_TASK_ID": "2",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    own = {"TPU_PROCESS_PORT", "TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID"}
    for name in shares[0]:
        assert len({share[name] for share in shares}) == (4 if name in own else 1), name
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "3")
    assert tpu_chips.process_count() == 1
    assert tpu_chips.share_of(Place(0, 1, 0, 1))["TPU_VISIBLE_CHIPS"] == "3"


@pytest.mark.parametrize(
    ("device", "chips", "place", "says"),
    [
        ("0x005e", 4, Place(5, 8, 1, 4, 1), r"^A process for each TPU chip is arranged on one machine alone.*use_spmd"),
        ("0x0027", 4, Place(1, 4, 1, 4), r"^A chip of a TPU v3 is two devices.*use_spmd\(\)"),
        ("0x0063", 8, Place(1, 4, 1, 4), r"^This machine shows 8 TPU chips .*has 4 processes.*Start 8, or show 4"),
        ("0x0063", 2, Place(1, 2, 1, 2), r"^Cannot start a process for each of 2 TPU chips: expected 1, 4 or 8"),
    ],
)
def test_what_a_chip_for_each_process_cannot_be_is_refused_with_what_to_do(
    bus: Path, monkeypatch: pytest.MonkeyPatch, device: str, chips: int, place: Place, says: str
) -> None:
    monkeypatch.delenv("TPU_VISIBLE_CHIPS", raising=False)
    plug_in(bus, "0x1ae0", device, count=chips)
    with pytest.raises(RuntimeError, match=says):
        tpu_chips.share_of(place)


@pytest.mark.parametrize(("chips", "library", "value"), [(0, True, "localhost"), (0, False, None), (4, True, None)])
def test_libtpu_is_told_of_no_tpu_only_where_there_is_none(
    bus: Path, monkeypatch: pytest.MonkeyPatch, chips: int, library: bool, value: str | None
) -> None:
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    plug_in(bus, "0x1ae0", "0x0063", chips)
    monkeypatch.setattr(tpu_chips.importlib.util, "find_spec", lambda name: object() if library else None)
    with tpu_chips.searching_for_no_tpu():
        assert os.environ.get("TPU_WORKER_HOSTNAMES") == value
    assert "TPU_WORKER_HOSTNAMES" not in os.environ
