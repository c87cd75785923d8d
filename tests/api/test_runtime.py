"""The runtime's answers in a program of one process with one replica."""

import pytest

import torch_xla
import torch_xla._internal.tpu
import torch_xla.core.xla_env_vars as xenv
import torch_xla.core.xla_model as xm
import torch_xla.experimental.pjrt as pjrt
import torch_xla.experimental.tpu
import torch_xla.runtime as xr


def test_the_place_of_this_process() -> None:
    assert (xr.world_size(), xr.process_count(), xr.local_process_count()) == (1, 1, 1)
    assert (xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xr.host_index()) == (0, 0, 0, 0)
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal()) == (1, 0, 0)
    assert (xm.xrt_world_size(8), xm.get_ordinal(defval=3), xm.get_local_ordinal(defval=3)) == (1, 0, 0)
    assert xm.is_master_ordinal() and xm.is_master_ordinal(local=False)
    assert xr.get_master_ip() == "127.0.0.1"
    assert xr.is_bf16_supported() and xr.using_pjrt()


def test_every_count_of_devices_is_that_of_this_process() -> None:
    count = torch_xla.device_count()
    assert xr.addressable_device_count() == xr.local_device_count() == xr.global_device_count() == count
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == count
    assert len(xr.global_runtime_device_attributes()) == count


def test_a_device_tells_its_name() -> None:
    for name in torch_xla.real_devices():
        assert xr.runtime_device_attributes(name)["name"] == name
    with pytest.raises(ValueError, match="^no device is called 'TPU:7'; there are"):
        xr.runtime_device_attributes("TPU:7")


def test_the_platform_does_not_change_once_it_is_used() -> None:
    before = xr.device_type()
    assert torch_xla.real_devices()[0].partition(":")[0] == xr.device_type() == before


def test_spmd_is_on_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not xr.is_spmd()
    xr.use_spmd()
    assert xr.is_spmd() and xr.global_device_count() == 1
    monkeypatch.undo()
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    assert xr.is_spmd()


def test_the_old_paths_have_what_they_had() -> None:
    for name in ("world_size", "global_ordinal", "local_ordinal", "device_type", "process_index", "using_pjrt"):
        assert getattr(pjrt, name) is getattr(xr, name)
    assert pjrt.broadcast_master_param is xm.broadcast_master_param
    assert pjrt.rendezvous is xm.rendezvous
    for name in ("num_available_devices", "version", "get_tpu_env"):
        assert getattr(torch_xla.experimental.tpu, name) is getattr(torch_xla._internal.tpu, name)


def test_a_machine_without_a_tpu_says_so() -> None:
    tpu = torch_xla._internal.tpu
    if tpu.num_available_chips():
        pytest.skip("this machine has a TPU")
    assert tpu.num_available_devices() == 0
    for ask in (tpu.version, tpu.get_tpu_env, tpu.get_tpu_type, tpu.num_logical_cores_per_chip):
        with pytest.raises(OSError, match="this machine has no TPU"):
            ask()


def test_the_names_of_the_environment_variables_are_constants() -> None:
    assert xenv.PJRT_DEVICE == "PJRT_DEVICE"
    assert xenv.TPU_MESH_CTLER_ADDR == "TPU_MESH_CONTROLLER_ADDRESS"
