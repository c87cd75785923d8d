"""Starting processes, and what goes to them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla._engine.distributed import process_launch
from torch_xla._engine.runtime import tpu_chips

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
import torch, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp

def train(index, size, wrapped, serial):
    model = wrapped.to(torch_xla.device())
    print(index, serial.run(lambda: model(torch.ones(2, size, device="xla")).shape), flush=True)

def fail(index):
    raise KeyError("what was wrong")

if __name__ == "__main__":
    arguments = (4, xmp.MpModelWrapper(torch.nn.Linear(4, 3)), xmp.MpSerialExecutor())
    print(xmp.spawn(train, arguments, start_method=sys.argv[1]), flush=True)
    if sys.argv[1] == "fork":  # the quick one: the other imports PyTorch anew for every process
        context = xmp.spawn(train, arguments, join=False, start_method="fork")
        print(len(context.processes), flush=True)
        while not context.join():
            pass
        try:
            xmp.spawn(fail, start_method="fork")
        except torch.multiprocessing.ProcessRaisedException as error:
            print("what was wrong" in str(error))
    assert not torch_xla._XLAC._xla_runtime_is_initialized()
"""


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_child_runs_the_function_and_tells_what_it_raised(tmp_path: Path, start_method: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / "program.py"), start_method],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
    )
    once = ["0 torch.Size([2, 3])", "None"]
    expected = once if start_method == "spawn" else [*once, "1", once[0], "True"]
    assert (result.stdout.splitlines(), result.stderr) == (expected, "")


def test_one_process_is_this_one() -> None:
    seen: list[Any] = []
    xmp.spawn(lambda index, a, b: seen.append((index, a, b)), args=("a", 2), nprocs=1)
    assert seen == [(0, "a", 2)]
    with pytest.raises(ZeroDivisionError):
        xmp.spawn(lambda index: 1 // index, nprocs=1)


@pytest.mark.parametrize("count", [0, 3])
def test_another_number_of_processes_is_refused(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    with pytest.raises(ValueError, match=rf"spawn\(nprocs={count}\): expected None or 4.*or 1.*CPU_NUM_DEVICES"):
        xmp.spawn(print, nprocs=count)


def test_settings_say_how_many_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,4")
    assert process_launch.device_count() == 3
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    assert process_launch.device_count() == 2
    monkeypatch.setenv("GPU_NUM_DEVICES", "4")
    with pytest.raises(RuntimeError, match="GPU_NUM_DEVICES is 4, and this machine shows 3"):
        process_launch.device_count()


def test_there_is_a_process_for_each_tpu_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    monkeypatch.setattr(tpu_chips, "chip_count", lambda: 4)
    monkeypatch.delenv("TPU_VISIBLE_CHIPS", raising=False)
    assert process_launch.device_count() == 4 == process_launch.checked_count(None)
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "2")
    assert process_launch.device_count() == 1 == process_launch.checked_count(None)


def test_a_process_that_used_a_device_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_xla._engine.runtime.platform.expected_device_count", lambda: 1)
    torch.ones(1, device="xla").tolist()
    with pytest.raises(RuntimeError, match="used an xla device, and a fork of it cannot.*start_method='spawn'"):
        xmp.spawn(print, start_method="fork")


def test_a_wrapped_model_moves_with_its_parameters() -> None:
    model = torch.nn.Linear(2, 3)
    moved = xmp.MpModelWrapper(model).to(torch_xla.device())
    assert moved is model and {p.device.type for p in moved.parameters()} == {"xla"}
