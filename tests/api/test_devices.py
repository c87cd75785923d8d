"""Devices by all the names that programs use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

ROOT = Path(__file__).parents[2]


def test_the_device_of_this_thread() -> None:
    first = torch.device("xla:0")
    assert torch_xla.device() == torch_xla.device(0) == xm.xla_device() == xm.xla_device(0) == first
    assert str(torch_xla.device()) == "xla:0"
    with torch_xla.device():
        assert torch.ones(1).device == first


def test_all_devices() -> None:
    count = torch_xla.device_count()
    assert torch_xla.devices() == [torch.device("xla", i) for i in range(count)]
    assert xm.get_xla_supported_devices() == [f"xla:{i}" for i in range(count)]
    assert xm.get_xla_supported_devices(max_devices=1) == ["xla:0"]
    assert xm.get_xla_supported_devices(devkind="NEURON") == []
    assert torch_xla.real_devices() == xm.xla_real_devices() == xm.xla_replication_devices()
    assert xm.xla_real_devices(torch_xla.devices()) == torch_xla.real_devices()


@pytest.mark.parametrize("name", ["xla", "xla:0", 0, torch.device("xla"), torch.device("xla:0"), None])
def test_every_name_of_a_device_is_understood(name: torch.device | str | int | None) -> None:
    assert xm.xla_device_hw(name) == xr.device_type()
    assert xm.xla_real_devices([name]) == torch_xla.real_devices()[:1]
    assert xm.xla_device_kind(name) == xm.xla_device_kind()
    xm.set_rng_state(3, name)
    assert xm.get_rng_state(name) == 3


def test_the_real_name_is_a_name_too() -> None:
    assert xm.get_rng_state(torch_xla.real_devices()[0]) == xm.get_rng_state(0)


def test_devices_that_do_not_exist_are_refused() -> None:
    for ask in (torch_xla.device, xm.xla_device):
        with pytest.raises(RuntimeError, match="^xla:99 does not exist: this process has"):
            ask(99)
        with pytest.raises(RuntimeError, match="^xla:-1 does not exist: ordinals count from 0$"):
            ask(-1)
    with pytest.raises(RuntimeError, match="^xla_device.devkind='NEURON'.: the devices of this process are"):
        xm.xla_device(devkind="NEURON")
    for name in ("cpu", torch.device("cpu"), "meta:0"):
        with pytest.raises(RuntimeError, match="is not an xla device: expected a name such as 'xla'"):
            xm.xla_device_hw(name)


def test_several_devices_in_one_process() -> None:
    program = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
assert torch_xla.device_count() == xr.global_runtime_device_count() == xr.addressable_device_count() == 3
assert torch_xla.real_devices() == ["CPU:0", "CPU:1", "CPU:2"]
assert xr.global_device_count() == xr.local_device_count() == 3 and xr.world_size() == 1
assert [a["name"] for a in xr.global_runtime_device_attributes()] == torch_xla.real_devices()
assert xm.xla_device(1) == torch.device("xla:1") == torch_xla.device()
x = torch.ones(2, device="xla") * 2
assert x.device.index == torch.ones(2).to("xla").device.index == 1
leaf = torch.ones(2, device="xla:2", requires_grad=True)
(leaf * leaf).sum().backward()
assert leaf.grad.tolist() == [2, 2] and leaf.grad.device.index == 2
torch_xla.sync()
assert not torch_xla._XLAC._check_tensor_need_materialization([x])[0]
assert xm.is_master_ordinal() and xr.global_ordinal() == 0
y = torch.ones(2, device="xla:2") * 3
torch_xla.sync()
assert torch_xla._XLAC._check_tensor_need_materialization([y])[0]
torch_xla._XLAC._xla_step_marker("xla:2")
assert not torch_xla._XLAC._check_tensor_need_materialization([y])[0]
try:
    torch_xla._XLAC._get_xla_tensors_text([x, y])
except RuntimeError as error:
    assert str(error) == "a graph belongs to one device; these tensors are on xla:1, xla:2", error
xm.set_replication("xla:0", xm.get_xla_supported_devices())
assert torch_xla.device().index == 0
xm.set_rng_state(7, "xla:2")
assert xm.get_rng_state("CPU:2") == 7 != xm.get_rng_state("xla:1")
saved = xm._maybe_convert_to_cpu([x, y])
assert [t.tolist() for t in saved] == [[2, 2], [3, 3]]
assert xm.get_memory_info("xla:2")["bytes_used"] >= 8
print("done")
"""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "3"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert result.stdout == "done\n", result.stderr


def test_memory_has_old_and_new_names() -> None:
    held = torch.ones(1 << 16, device="xla") + 1
    torch_xla.sync(wait=True)
    info = xm.get_memory_info(xm.xla_device())
    assert set(info) == {"bytes_used", "bytes_limit", "peak_bytes_used", "kb_free", "kb_total"}
    assert held.nbytes <= info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]
    assert info["kb_total"] == info["bytes_limit"] // 1024
    assert info["kb_free"] == (info["bytes_limit"] - info["bytes_used"]) // 1024
    assert torch_xla._XLAC._xla_memory_info("xla:0").keys() == {"bytes_used", "bytes_limit", "peak_bytes_used"}
