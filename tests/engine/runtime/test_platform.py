"""The platform and its devices; questions that need no client start none."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from torch_xla._engine import config
from torch_xla._engine.processes import identity, spmd_mode
from torch_xla._engine.processes.identity import Place
from torch_xla._engine.runtime import abstract_devices, platform


@pytest.mark.parametrize(
    ("wanted", "name"), [("CPU", "CPU"), ("GPU", "CUDA"), ("CUDA", "CUDA"), ("TPU", "TPU"), ("NEURON_2", "NEURON")]
)
def test_the_platform_is_told_by_the_setting(wanted: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", wanted)
    monkeypatch.setattr(platform, "local_devices", lambda: pytest.fail("started a client"))
    assert platform.device_type() == name


def test_without_a_setting_by_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert platform.device_type() == "CPU" == platform.export_platform().upper()
    gpu: Any = SimpleNamespace(platform="gpu", id=1)
    with platform.standing_in((gpu,)):
        assert platform.device_type() == "CUDA" and platform.export_platform() == "cuda"
        assert platform.real_name(gpu) == "CUDA:1"


def test_devices_have_names_and_numbers() -> None:
    first = platform.local_devices()[0]
    assert platform.real_name(first) == "CPU:0" and platform.ordinal_of(first) == 0
    assert platform.all_devices() == platform.local_devices() and platform.counterparts(0) == (first,)
    assert platform.is_started() and not platform.is_forked()


def test_with_all_devices_behind_one_ordinal_a_device_has_its_place_among_them() -> None:
    four = abstract_devices.virtual_devices(4)
    with spmd_mode.turned_on(), platform.standing_in(four[::-1]):
        assert [platform.ordinal_of(device) for device in four] == [3, 2, 1, 0]


def test_in_a_program_of_several_processes_a_device_has_the_number_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "_place", Place(1, 2))
    device: Any = SimpleNamespace(platform="cpu", id=2048, process_index=1)
    assert platform.ordinal_of(device) == 1 and platform.real_name(device) == "CPU:1"


def test_a_platform_that_is_not_there_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "BANANA")
    with pytest.raises(RuntimeError, match=r"^PJRT_DEVICE=BANANA: JAX has no such platform here \(.*unset PJRT_DEVICE"):
        platform._devices_of_client.__wrapped__()


def test_a_platform_that_does_not_start_leads_to_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(backend: str | None) -> Any:
        raise RuntimeError("no CUDA-capable device is detected")

    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    monkeypatch.setattr(jax, "local_devices", fails)
    with pytest.raises(RuntimeError, match=r"^JAX could not start a device \(no CUDA.*doctor` explains more"):
        platform._devices_of_client.__wrapped__()


def test_each_process_gets_the_tpu_chip_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(config, "set_libtpu_variables", told.append)
    monkeypatch.setattr(identity, "_place", Place(2, 4, 2, 4))
    monkeypatch.setattr(platform, "is_tpu_usable", lambda: True)
    monkeypatch.setattr(platform, "tpu_share_of", lambda place: {"TPU_VISIBLE_CHIPS": str(place.local_index)})
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    platform._take_one_device("CPU")
    assert told == []
    platform._take_one_device("TPU")
    platform._take_one_device("")
    assert told == [{"TPU_VISIBLE_CHIPS": "2"}] * 2
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,4,1")  # processes that are arranged already stay so
    platform._take_one_device("TPU")
    assert len(told) == 2


def test_each_process_gets_the_gpu_of_its_number_or_the_one_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", taken.__setitem__)
    monkeypatch.setattr(identity, "_place", Place(2, 4, 2, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3,5")
    platform._take_one_device("CUDA")
    assert taken["jax_cuda_visible_devices"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # by SLURM, for this process alone
    platform._take_one_device("CUDA")
    assert taken["jax_cuda_visible_devices"] == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    platform._take_one_device("CPU")
    with pytest.raises(RuntimeError, match=r"^This is process 2 of 4 on this machine.* shows 2\..*--nproc-per-node 2"):
        platform._take_one_device("CUDA")


def test_files_tell_of_gpus_unless_programs_are_shown_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0", "/dev/nvidia1"] if "nvidia" in pattern else [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert platform.gpu_count() == platform._accelerator_files() == 2
    for shown, count in (("1", 1), ("", 0), ("-1", 0), ("MIG-a,MIG-b,MIG-c", 3)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert platform.gpu_count() == platform._accelerator_files() == count


def test_a_fork_of_a_process_that_used_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    platform.refuse_fork()
    monkeypatch.setattr(platform, "forked", True)
    with pytest.raises(RuntimeError, match="a fork cannot use it"):
        platform.refuse_fork()
    with pytest.raises(RuntimeError, match="a fork cannot use it"):
        platform._devices_of_client.__wrapped__()


def test_how_many_devices_there_will_be_is_told_by_settings_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_accelerator_files", lambda: 0)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert platform.expected_device_count() == 1
    monkeypatch.setenv("CPU_NUM_DEVICES", "3")
    assert platform.expected_device_count() == 3
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=5")
    assert platform.expected_device_count() == 5
    monkeypatch.setattr(platform, "_accelerator_files", lambda: 8)
    assert platform.expected_device_count() == 8
    with spmd_mode.turned_on():
        assert platform.expected_device_count() == 1
    monkeypatch.setattr(identity, "_place", Place(0, 4))
    assert platform.expected_device_count() == 1


def test_whether_the_host_will_be_the_device_is_told_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_accelerator_files", lambda: 2)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert not platform._is_host_likely()
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert platform._is_host_likely()
    assert jax.devices("cpu")[0] in platform.local_devices()
