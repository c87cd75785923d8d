"""The platform is known before a client runs, and stays what it is afterwards."""

import types
from collections.abc import Iterator

import jax
import pytest

from torch_xla._engine.runtime import gpus, platform_selection, tpu_chips


def forget_what_is_installed() -> None:
    platform_selection._known_hardware.cache_clear()
    platform_selection._has_unknown_plugin.cache_clear()


@pytest.fixture(autouse=True)
def unstarted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not used a device."""
    before = jax.config.jax_platforms  # type: ignore[attr-defined]
    monkeypatch.setattr(platform_selection, "is_platform_started", lambda: False)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    jax.config.update("jax_platforms", None)
    forget_what_is_installed()
    yield
    jax.config.update("jax_platforms", before)
    forget_what_is_installed()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """A machine with these modules installed and these files; no TPU."""
    has: dict[str, set[str]] = {"modules": set(), "files": set()}
    monkeypatch.setattr(gpus, "_is_installed", lambda module: module in has["modules"])
    monkeypatch.setattr(gpus.Path, "exists", lambda path: str(path) in has["files"])
    monkeypatch.setattr(tpu_chips, "chip_count", lambda: 0)
    monkeypatch.setattr(platform_selection.importlib.metadata, "entry_points", lambda group: ())
    return has


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, told in (("TPU", "TPU"), ("cpu", "CPU"), ("GPU", "CUDA"), ("NEURON_X", "NEURON")):
        monkeypatch.setenv("PJRT_DEVICE", given)
        assert platform_selection.device_type() == told


def test_then_the_setting_of_jax() -> None:
    jax.config.update("jax_platforms", "cuda,cpu")
    assert platform_selection.device_type() == "CUDA"


def test_a_gpu_counts_if_its_plugin_is_installed(machine: dict[str, set[str]]) -> None:
    machine["files"].add("/dev/nvidia0")
    assert platform_selection.device_type() == "CPU"
    forget_what_is_installed()
    machine["modules"].add("jax_cuda12_plugin")
    assert platform_selection.device_type() == "CUDA"


def test_a_plugin_without_its_hardware_does_not_count(machine: dict[str, set[str]]) -> None:
    machine["modules"].update(("jax_cuda13_plugin", "libtpu"))
    assert platform_selection.device_type() == "CPU"


def test_a_tpu_comes_before_a_gpu(machine: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    machine["files"].add("/dev/nvidia0")
    machine["modules"].add("jax_cuda12_plugin")
    monkeypatch.setattr(platform_selection, "is_tpu_usable", lambda: True)
    assert platform_selection.device_type() == "TPU"


def test_whether_there_is_an_accelerator_is_told_without_a_client(
    machine: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not platform_selection.is_accelerated()
    machine["files"].add("/dev/nvidia0")
    machine["modules"].add("jax_cuda13_plugin")
    forget_what_is_installed()
    assert platform_selection.is_accelerated()
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert not platform_selection.is_accelerated()


def test_a_plugin_that_nobody_knows_counts_as_an_accelerator(
    machine: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = types.SimpleNamespace(name="npu")
    monkeypatch.setattr(platform_selection.importlib.metadata, "entry_points", lambda group: (plugin,))
    assert platform_selection.is_accelerated()


def test_choosing_sets_jax_and_keeps_the_cpu_beside_it(machine: dict[str, set[str]]) -> None:
    platform_selection.choose("GPU")
    assert jax.config.jax_platforms == "cuda,cpu"  # type: ignore[attr-defined]
    assert platform_selection.device_type() == "CUDA"
    platform_selection.choose("cpu")
    assert jax.config.jax_platforms == "cpu"  # type: ignore[attr-defined]


def test_choosing_what_is_there_changes_nothing(machine: dict[str, set[str]]) -> None:
    platform_selection.choose("CPU")
    assert jax.config.jax_platforms is None  # type: ignore[attr-defined]


def test_choosing_against_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    with pytest.raises(RuntimeError) as error:
        platform_selection.choose("TPU")
    assert str(error.value) == (
        "set_device_type('TPU'): PJRT_DEVICE=CPU is set in the environment and counts more. Unset it, or set it to TPU."
    )


def test_choosing_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_selection, "is_platform_started", lambda: True)
    running = platform_selection.device_type()
    other = "TPU" if running == "CPU" else "CPU"
    with pytest.raises(RuntimeError) as error:
        platform_selection.choose(other)
    assert str(error.value) == (
        f"set_device_type('{other}'): the client runs on {running} already. Call it before anything uses an xla "
        f"device, or set PJRT_DEVICE={other} for the whole process."
    )
