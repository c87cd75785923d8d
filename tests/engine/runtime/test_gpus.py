"""GPUs are found by files, and a CUDA plugin without one is passed by in silence."""

import logging

import pytest

from torch_xla._engine.runtime import gpus
from torch_xla._engine.runtime.first_client import client_environment

REFUSAL = "Jax plugin configuration error: Exception when calling %s.initialize()"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()
    monkeypatch.setattr(gpus.Path, "exists", lambda path: str(path) in found)
    monkeypatch.setattr(gpus, "_is_installed", lambda module: module in ("jax_cuda12_plugin", "jax_rocm7_plugin"))
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    return found


@pytest.mark.parametrize(("file", "platform"), [("/dev/nvidiactl", "CUDA"), ("/dev/dxg", "CUDA"), ("/dev/kfd", "ROCM")])
def test_a_gpu_is_a_file(files: set[str], file: str, platform: str) -> None:
    assert not gpus.has_gpu() and gpus.usable_platform() == ""
    files.add(file)
    assert gpus.has_gpu() and gpus.usable_platform() == platform


def logged(caplog: pytest.LogCaptureFixture, *message: str) -> bool:
    caplog.clear()
    logging.getLogger("jax._src.xla_bridge").error(*message)
    return bool(caplog.records)


def test_without_a_driver_its_refusal_is_not_logged(
    files: set[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_environment():
        assert not logged(caplog, REFUSAL, "jax_plugins.xla_cuda12")
        assert not logged(caplog, REFUSAL, "jax_plugins.xla_cuda13")
        assert logged(caplog, REFUSAL, "jax_plugins.other") and logged(caplog, "Unable to start cuda")
    assert logged(caplog, REFUSAL, "jax_plugins.xla_cuda12")
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    with client_environment():
        assert logged(caplog, REFUSAL, "jax_plugins.xla_cuda12")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    files.add("/dev/nvidiactl")
    with client_environment():
        assert logged(caplog, REFUSAL, "jax_plugins.xla_cuda12")
