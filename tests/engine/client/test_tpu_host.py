"""TPU chips are found on the PCI bus, and nobody is asked where there are none."""

from pathlib import Path

import pytest

from torch_xla._engine.client import tpu_host


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tpu_host, "_PCI_DEVICES", tmp_path)
    return tmp_path


def plug_in(bus: Path, vendor: str, device: str, count: int = 1) -> None:
    for _ in range(count):
        slot = bus / f"0000:00:{len(list(bus.iterdir())):02x}.0"
        slot.mkdir()
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "device").write_text(f"{device}\n")


def test_a_machine_without_a_tpu_has_no_devices_and_says_so(bus: Path) -> None:
    plug_in(bus, "0x10de", "0x2335", count=8)
    assert (tpu_host.chip_count(), tpu_host.device_count()) == (0, 0)
    for ask in (tpu_host.generation, tpu_host.cores_per_chip, tpu_host.environment):
        with pytest.raises(OSError, match="this machine has no TPU on its PCI bus"):
            ask()


@pytest.mark.parametrize(
    ("device", "generation", "devices"), [("0x0027", 3, 8), ("0x005e", 4, 4), ("0x0063", 5, 4), ("0x006f", 6, 4)]
)
def test_chips_are_counted_and_their_generation_told(bus: Path, device: str, generation: int, devices: int) -> None:
    plug_in(bus, "0x1ae0", device, count=4)
    plug_in(bus, "0x1ae0", "0x0042")  # another device of the same vendor
    assert tpu_host.chip_count() == 4
    assert tpu_host.generation() == generation
    assert tpu_host.device_count() == devices


def test_the_answer_of_the_metadata_server_is_read_line_by_line() -> None:
    text = "ACCELERATOR_TYPE: 'v4-8'\nTPU_PROCESS_BOUNDS: '1,1,1'\nWORKER_ID: 0\n"
    assert tpu_host.parse_environment(text) == {
        "ACCELERATOR_TYPE": "v4-8",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "WORKER_ID": "0",
    }
