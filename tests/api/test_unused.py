"""Imported and not used, the package changes nothing: programs of the CPU do what they do without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.runtime import platform_selection

ROOT = Path(__file__).parents[2]


def results(*ways: list[str]) -> list[Any]:
    """Return the output of the programs, run in these ways at the same time."""
    program = [sys.executable, str(ROOT / "tests" / "support" / "cpu_programs.py")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([*program, *way], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for way in ways
    ]
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        found.append(json.loads(output))
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    platform_selection.is_accelerated(), reason="there the package's device is the accelerator from the import on"
)
def test_programs_of_the_cpu_do_what_they_do_without_the_package() -> None:
    without, with_us = results([], ["import"])
    assert len(without) > 20
    differences = {name: (without[name], with_us[name]) for name in without if without[name] != with_us[name]}
    # The error of a program that asks for an accelerator says in addition how to have one.
    asked = "RuntimeError: Cannot access accelerator device when none is available."
    assert set(differences) == {"memory_in_use", "the_current_device", "waiting"}
    for name, (theirs, ours) in differences.items():
        assert theirs == [asked, []] and ours[0].startswith(asked) and ours[1] == [], name


def test_data_parallel_calls_a_module_as_it_is() -> None:
    x = torch.randn(4, 3)
    for device in ("cpu", "xla"):
        model = torch.nn.Linear(3, 2).to(device)
        spread = torch.nn.DataParallel(model)
        assert torch.equal(spread(x.to(device)), model(x.to(device)))


def test_the_accelerator_is_the_device_that_is_in_use() -> None:
    x = torch.ones(1000, device=torch_xla.device())
    torch_xla.sync()
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("xla") and accelerator.is_available()
    assert accelerator.current_device_index() == x.device.index
    assert torch.get_device_module() is torch.xla  # type: ignore[attr-defined]
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated() >= x.nbytes
    free, total = accelerator.get_memory_info()
    assert 0 < free < total
    accelerator.empty_cache()
    accelerator.synchronize()
    with accelerator.device_index(0):
        assert accelerator.current_stream().device == torch.device("xla", 0)


@pytest.mark.skipif(platform_selection.is_accelerated(), reason="PJRT keeps the peak there")
def test_the_peak_of_memory_begins_anew() -> None:
    x = torch.randn(1_000_000).to("xla")
    before = torch.accelerator.max_memory_allocated()
    assert before >= 4_000_000
    del x
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() <= before - 4_000_000


UNUSED = """
import gc, torch
collected = []
gc.callbacks.append(lambda phase, info: collected.append(phase))
import torch_xla
assert len(collected) < 20, len(collected)
assert gc.isenabled()

with torch.profiler.profile() as taken:
    torch.ones(3) + 1
assert all(event.device_type == torch.autograd.DeviceType.CPU for event in taken.events())

assert torch.xla.memory_allocated() == torch.xla.max_memory_reserved() == 0
torch.xla.reset_peak_memory_stats()
torch.xla.empty_cache()

import torch_xla.core.xla_model as xm
torch_xla.sync()
assert not torch_xla._XLAC._xla_runtime_is_initialized() and not torch.xla.is_initialized()
xm.add_step_closure(print, args=("closure",))
torch_xla.sync()
xm.add_step_closure(print, args=("in the background",), run_async=True)
torch_xla.sync()

torch.xla.init()
assert torch.xla.is_initialized()
"""


def test_the_import_a_profile_questions_about_memory_and_step_closures_need_no_device() -> None:
    """The import collects no garbage, none of these starts a client, and closures are called without one."""
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "closure\nin the background\n"


@pytest.mark.slow
def test_ordinals_that_come_into_use_later_have_the_seed_of_the_process() -> None:
    program = (
        "import torch, torch_xla\n"
        "torch.manual_seed(3)\n"
        "late = [torch.rand(2, device=f'xla:{i}').tolist() for i in range(2)]\n"
        "torch.manual_seed(3)\n"
        "assert late == [torch.rand(2, device=f'xla:{i}').tolist() for i in range(2)]\n"
        "assert late[0] != late[1]\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
