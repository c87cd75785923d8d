"""Each finding of the doctor, by the mistake it explains: as facts, and, where it can be made here, in earnest."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torch_xla._engine.doctor import diagnosis, environment_facts
from torch_xla._engine.doctor.environment_facts import Surroundings
from torch_xla._engine.doctor.findings import REMOVED, Finding, Level, examine

STAGES = {
    "torch": {"state": "ended", "version": "2.13.0", "cuda": None, "privateuse1": "privateuseone"},
    "jax": {"state": "ended", "version": "0.10.2", "jaxlib": "0.10.2"},
    "torch_xla": {"state": "ended", "version": "3.0.0"},
    "device": {"state": "ended", "type": "CPU", "names": ["CPU:0"], "kind": "cpu", "bytes": 2**30},
    "computation": {"state": "ended", "right": True},
}
WELL = Surroundings(
    (3, 12, 1), "/usr/bin/python", {"torch": "2.13.0", "jax": "0.10.2", "jaxlib": "0.10.2"}, ("torch-xla",), (), (), (),
    (), {}, environment_facts.known_settings(), {}, STAGES,
)  # fmt: skip


def stages(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages with some facts changed; those after a stage that did not end were not reached."""
    found: dict[str, dict[str, Any]] = {}
    for name, facts in STAGES.items():
        found[name] = {**facts, **changed.get(name, {})}
        if found[name]["state"] != "ended":
            break
    return found


def only(around: Surroundings) -> Finding:
    (finding,) = examine(around)
    return finding


def test_where_all_is_well_nothing_is_found() -> None:
    assert examine(WELL) == []
    text, data = diagnosis.diagnose(WELL)
    assert text.startswith("The xla device works.\n\nPackages\n  python 3.12.1  /usr/bin/python\n  torch 2.13.0\n")
    assert "  xla:0 is CPU:0 (cpu)\n  memory of each: 1.0 GiB\n" in text
    assert data["works"] and data["status"] == 0


def test_the_worst_finding_decides_and_comes_first() -> None:
    around = replace(WELL, settings={"XLA_NONSENSE": "1", "XLA_SYNC_WAIT": "1"}, python=(3, 9, 0))
    assert [finding.level for finding in examine(around)] == [Level.ERROR, Level.WARNING, Level.NOTE]
    text, data = diagnosis.diagnose(around)
    assert text.startswith("The xla device does not work here.") and data["status"] == 2 and not data["works"]
    assert text.endswith("NOTE: XLA_SYNC_WAIT: each makes every step slower.\n  remedy: Unset it when you are done.\n")
    assert diagnosis.diagnose(replace(WELL, settings={"XLA_NONSENSE": "1"}))[1]["status"] == 1


MISTAKES = {
    "an old Python": (
        replace(WELL, python=(3, 10, 4)),
        Level.ERROR, "Python is 3.10.4; torch_xla needs 3.11 or newer.", "Make an environment with a newer Python.",
    ),
    "an old torch": (
        replace(WELL, stages=stages(torch={"version": "2.9.1+cu128"})),
        Level.ERROR, "torch is 2.9.1+cu128; torch_xla needs 2.11 or newer.", "pip install -U 'torch>=2.11,<2.16'",
    ),
    "a new torch": (
        replace(WELL, stages=stages(torch={"version": "2.16.0+cpu"})),
        Level.ERROR, "torch is 2.16.0+cpu; torch_xla needs one before 2.16.", "pip install 'torch>=2.11,<2.16'",
    ),
    "an old jax": (
        replace(WELL, packages={"jax": "0.9.0", "jaxlib": "0.9.0"}, stages=stages(jax={"version": "0.9.0"})),
        Level.ERROR, "jax is 0.9.0; torch_xla needs 0.10 or newer.", "pip install -U 'jax>=0.10,<0.13'",
    ),
    "a new jax": (
        replace(WELL, packages={"jax": "0.13.0", "jaxlib": "0.13.0"}, stages=stages(jax={"version": "0.13.0"})),
        Level.ERROR, "jax is 0.13.0; torch_xla needs one before 0.13.", "pip install 'jax>=0.10,<0.13'",
    ),
    "jax and jaxlib of two releases": (
        replace(WELL, packages={"jax": "0.10.2", "jaxlib": "0.11.0"}),
        Level.ERROR, "one is not made for the other", "pip install -U 'jax==0.10.2' 'jaxlib==0.10.2'",
    ),
    "a plugin of another release": (
        replace(WELL, packages={**WELL.packages, "jax-cuda12-plugin": "0.9.1"}),
        Level.WARNING, "JAX leaves out a plugin that is not made for it", "pip install -U 'jax[cuda12]'",
    ),
    "PrivateUse1 is taken": (
        replace(WELL, torch_backends=("torch_npu",), stages=stages(torch={"privateuse1": "npu"})),
        Level.ERROR, "(PrivateUse1), and 'npu' has taken it: torch_npu does so when torch is imported.",
        "Uninstall that package, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and do not import it.",
    ),
    "a backend that may take it": (
        replace(WELL, torch_backends=("torch_npu",)),
        Level.NOTE, "PyTorch loads torch_npu when it is imported.", "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
    ),
    "two torch_xla": (
        replace(WELL, owners=("torch-xla", "torch_xla_nightly")),
        Level.ERROR, "torch_xla_nightly installs a package `torch_xla` too",
        "pip uninstall torch_xla_nightly torch_xla",
    ),
    "a leftover": (
        replace(WELL, leftovers=("_XLAC.cpython-311-x86_64-linux-gnu.so",)),
        Level.WARNING, "is a part of PyTorch/XLA 2 that its uninstallation left.", "Delete that file.",
    ),
    "no jax": (
        replace(WELL, stages=stages(jax={"state": "failed", "error": "ModuleNotFoundError: No module named 'jax'",
                                         "missing": True, "version": ""}), packages={}),
        Level.ERROR, "JAX could not be imported: ModuleNotFoundError: No module named 'jax'",
        "pip install 'jax>=0.10,<0.13'",
    ),
    "a torch that cannot load": (
        replace(WELL, stages=stages(torch={"state": "failed", "error": "OSError: libcudart.so.12", "missing": False})),
        Level.ERROR, "PyTorch could not be imported: OSError: libcudart.so.12",
        "pip install --force-reinstall 'torch>=2.11,<2.16'",
    ),
    "a device that hangs": (
        replace(WELL, stages=stages(device={"state": "started"}), probe_status=None),
        Level.ERROR, "The device could not be started: it took too long and was ended.", "end it.",
    ),
    "a driver that crashes": (
        replace(WELL, stages=stages(device={"state": "started"}), probe_status=-11, probe_errors="a\nb\nlast words"),
        Level.ERROR, "the process died with status -11. a | b | last words", "a plugin may not fit the machine",
    ),
    "a Python that does not start": (
        replace(WELL, stages={}, probe_status=1, probe_errors="bad interpreter"),
        Level.ERROR, "Python did not start. bad interpreter", "Repair the environment.",
    ),
    "PJRT_DEVICE that JAX_PLATFORMS excludes": (
        replace(WELL, settings={"PJRT_DEVICE": "CUDA", "JAX_PLATFORMS": "cpu"},
                stages=stages(device={"state": "failed", "error": "RuntimeError: no such platform"})),
        Level.ERROR, "The device could not be started: RuntimeError: no such platform",
        "PJRT_DEVICE=CUDA asks for what JAX_PLATFORMS=cpu excludes: unset one of them.",
    ),
    "a wrong product": (
        replace(WELL, stages=stages(computation={"right": False})),
        Level.ERROR, "The device gives a wrong product of two matrices.", "Report it, with this page.",
    ),
    "a CUDA PyTorch without a CUDA JAX": (
        replace(WELL, hardware=("NVIDIA GPU",), stages=stages(torch={"cuda": "12.8"})),
        Level.WARNING, "JAX has no CUDA plugin: the xla device is the CPU. PyTorch is built for CUDA 12.8, JAX is not.",
        "pip install 'torch_xla[cuda12]'",
    ),
    "a CUDA PyTorch without a CUDA JAX, and no GPU": (
        replace(WELL, stages=stages(torch={"cuda": "13.0"})),
        Level.NOTE, "PyTorch is built for CUDA 13.0 and JAX has no CUDA plugin", "where there is a GPU.",
    ),
    "a GPU that JAX does not use": (
        replace(WELL, hardware=("NVIDIA GPU",), packages={**WELL.packages, "jax-cuda13-plugin": "0.10.2"},
                probe_errors="driver too old"),
        Level.WARNING, "an NVIDIA GPU and jax-cuda13-plugin, and yet the device is the CPU. driver too old",
        "`nvidia-smi` tells its CUDA version",
    ),
    "two CUDA plugins": (
        replace(WELL, packages={**WELL.packages, "jax-cuda12-plugin": "0.10.2", "jax-cuda13-plugin": "0.10.2"}),
        Level.WARNING, "jax-cuda12-plugin and jax-cuda13-plugin are both installed",
        "pip uninstall jax-cuda12-plugin or jax-cuda13-plugin",
    ),
    "memory that JAX takes from PyTorch": (
        replace(WELL, hardware=("NVIDIA GPU",), packages={**WELL.packages, "jax-cuda12-plugin": "0.10.2"},
                stages=stages(torch={"cuda": "12.8"}, device={"type": "CUDA"})),
        Level.NOTE, "JAX reserves three quarters of the GPU's memory", "XLA_PYTHON_CLIENT_PREALLOCATE=false",
    ),
    "a TPU without libtpu": (
        replace(WELL, hardware=("TPU",)),
        Level.WARNING, "There is a TPU, and libtpu is not installed.", "pip install 'torch_xla[tpu]'",
    ),
    "a setting that is gone": (
        replace(WELL, settings={"XLA_USE_FP16": "1"}),
        Level.WARNING, "XLA_USE_FP16 does nothing: PyTorch/XLA 2 read it.", f"Unset it: {REMOVED['XLA_USE_FP16']}.",
    ),
    "a setting of XRT": (
        replace(WELL, settings={"XRT_TPU_CONFIG": "localservice;0;localhost:51011"}),
        Level.WARNING, "XRT_TPU_CONFIG does nothing: XRT is gone.", "PJRT_DEVICE chooses the platform.",
    ),
    "a misspelt setting": (
        replace(WELL, settings={"XLA_SYNC_WAITS": "1"}),
        Level.WARNING, "XLA_SYNC_WAITS does nothing here.", "Did you mean XLA_SYNC_WAIT?",
    ),
    "an unknown setting": (
        replace(WELL, settings={"XLA_ABRACADABRA": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", "XLA_FLAGS": ""}),
        Level.WARNING, "XLA_ABRACADABRA does nothing here.", "Unset it; docs/environment.md lists all.",
    ),
    "a setting without the one it belongs to": (
        replace(WELL, settings={"PT_XLA_DEBUG_FILE": "/tmp/x", "PT_XLA_DEBUG": "0"}),
        Level.WARNING, "PT_XLA_DEBUG_FILE does nothing without PT_XLA_DEBUG or PT_XLA_DEBUG_LEVEL.",
        "Set PT_XLA_DEBUG too.",
    ),
    "devices of the CPU where there is none": (
        replace(WELL, settings={"CPU_NUM_DEVICES": "4", "PJRT_DEVICE": "TPU"}),
        Level.WARNING, "CPU_NUM_DEVICES does nothing: the platform is TPU.", "Unset it, or PJRT_DEVICE=CPU.",
    ),
    "two numbers of devices": (
        replace(WELL, settings={"CPU_NUM_DEVICES": "4", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}),
        Level.WARNING, "CPU_NUM_DEVICES asks for 4 devices and XLA_FLAGS for 2.", "Keep one of the two.",
    ),
    "numbers of fewer digits": (
        replace(WELL, settings={"XLA_USE_BF16": "1"}),
        Level.NOTE, "XLA_USE_BF16: tensors that say float32 hold bfloat16", "model.to(torch.bfloat16)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_with_its_remedy(mistake: str) -> None:
    around, level, what, remedy = MISTAKES[mistake]
    finding = only(around)
    assert finding.level is level
    assert what in finding.what and remedy in finding.remedy, finding


def test_a_value_that_cannot_be_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_MAX_ASYNC_QUEUE", "many")
    unreadable = environment_facts._unreadable()
    assert set(unreadable) == {"XLA_MAX_ASYNC_QUEUE"} and "many" in unreadable["XLA_MAX_ASYNC_QUEUE"]
    finding = only(replace(WELL, settings={"XLA_MAX_ASYNC_QUEUE": "many"}, unreadable_settings=unreadable))
    assert finding.level is Level.ERROR and finding.what.startswith("XLA_MAX_ASYNC_QUEUE=many cannot be read")


def doctor(*options: str, **settings: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA_FLAGS")}
    command = [sys.executable, "-m", "torch_xla.doctor", *options]
    done = subprocess.run(command, env={**environment, **settings}, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_on_this_machine() -> None:
    status, text = doctor("--json")
    data = json.loads(text)
    assert status == data["status"] < 2 and data["works"]
    assert list(data["stages"]) == ["torch", "jax", "torch_xla", "device", "computation"]
    computed = data["stages"]["computation"]
    assert computed["state"] == "ended" and computed["right"] and 0 < computed["seconds"] < 60
    assert data["packages"]["torch"].startswith("2.")


@pytest.mark.slow
def test_a_platform_that_jax_lacks() -> None:
    status, text = doctor(PJRT_DEVICE="ABACUS")
    assert status == 2
    assert "ERROR: The device could not be started: RuntimeError: PJRT_DEVICE=ABACUS: JAX has no such platform" in text
    assert "  remedy: Unset PJRT_DEVICE, or install what gives JAX that platform" in text


def test_a_device_that_takes_too_long_is_ended() -> None:
    status, text = doctor("--seconds", "0.01")
    assert status == 2 and ("it took too long and was ended" in text or "Python did not start" in text)


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


@pytest.mark.slow
def test_a_jax_that_cannot_be_imported_does_not_silence_the_doctor(tmp_path: Path) -> None:
    package(tmp_path, "jax", "raise RuntimeError('jaxlib is too old')")
    status, text = doctor(PYTHONPATH=str(tmp_path))
    assert status == 2
    assert "ERROR: JAX could not be imported: RuntimeError: jaxlib is too old" in text
    assert "  remedy: pip install --force-reinstall 'jax>=0.10,<0.13'" in text


@pytest.mark.slow
def test_a_package_that_takes_the_place_of_our_backend_is_named(tmp_path: Path) -> None:
    package(tmp_path, "thief", "import torch\ndef load(): torch.utils.rename_privateuse1_backend('thief')\n")
    (tmp_path / "thief-1.0.dist-info").mkdir()
    (tmp_path / "thief-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: thief\nVersion: 1.0\n")
    (tmp_path / "thief-1.0.dist-info" / "entry_points.txt").write_text("[torch.backends]\nthief = thief:load\n")
    status, text = doctor(PYTHONPATH=str(tmp_path))
    assert status == 2
    assert "and 'thief' has taken it: thief does so when torch is imported." in text
    assert "ERROR: torch_xla could not be imported: ImportError: " in text
