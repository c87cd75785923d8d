"""Any library may take a tensor of the device as it is, and is refused what PyTorch refuses of other devices."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch_xla._engine.tensor.storage import value_of


def test_numpy_and_jax_take_the_memory_itself() -> None:
    x = torch.arange(6.0).view(2, 3).to("xla")
    array = np.from_dlpack(x)
    assert array.tolist() == x.tolist() and array.ctypes.data == value_of(x).buffer.unsafe_buffer_pointer()
    assert jax.dlpack.from_dlpack(x).tolist() == x.tolist()
    assert torch.from_dlpack(x.__dlpack__()).tolist() == x.tolist()


def test_it_says_where_its_memory_is() -> None:
    assert torch.ones(1, device="xla").__dlpack_device__() == (1, 0)
    assert torch.ones(1).__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "gradient": (lambda x: x.requires_grad_().__dlpack__(), BufferError, "Can't export tensors that require gradient"),
    "conjugate": (lambda x: torch.complex(x, x).conj().__dlpack__(), BufferError, "with the conjugate bit set"),
    "stream": (lambda x: x.__dlpack__(stream="first"), TypeError, "stream must be an int or None, not str"),
    "device": (lambda x: x.__dlpack__(dl_device=(2, 0)), BufferError, r"as DLPack device \(1, 0\), not \(2, 0\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_offered_is_refused(name: str) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call(torch.ones(2, device="xla"))


def test_a_copy_is_given_where_one_is_asked_for() -> None:
    x = torch.arange(3.0).to("xla")
    array = np.from_dlpack(x, copy=True)
    assert array.ctypes.data != value_of(x).buffer.unsafe_buffer_pointer()
    assert array.tolist() == [0, 1, 2]


def test_both_functions_of_pytorch_make_capsules_of_it_and_of_others() -> None:
    for function in (torch.to_dlpack, torch.utils.dlpack.to_dlpack):  # type: ignore[attr-defined]
        for device in ("cpu", "xla"):
            assert torch.from_dlpack(function(torch.arange(3, device=device))).tolist() == [0, 1, 2]


def test_asarray_finds_the_tensor_behind_a_capsule() -> None:
    x = torch.arange(3.0).to("xla")
    for given in ({}, {"copy": False}, {"device": "xla"}, {"dtype": torch.float32, "device": x.device, "copy": False}):
        back = torch.asarray(torch.to_dlpack(x), **given)  # type: ignore[attr-defined]
        assert back.data_ptr() == x.data_ptr() and back.device == x.device
    capsule = torch.to_dlpack(x)  # type: ignore[attr-defined]
    copied = torch.asarray(capsule, copy=True, requires_grad=True)
    assert copied.device == x.device and copied.data_ptr() != x.data_ptr() and copied.requires_grad
    assert torch.asarray(torch.to_dlpack(x), dtype=torch.int32).tolist() == [0, 1, 2]  # type: ignore[attr-defined]
    host = torch.asarray(torch.to_dlpack(x), device="cpu", copy=False)  # type: ignore[attr-defined]
    assert host.data_ptr() == value_of(x).buffer.unsafe_buffer_pointer()


def test_asarray_of_anything_else_is_what_it_was() -> None:
    y = torch.arange(3)
    assert torch.asarray(torch.to_dlpack(y)).data_ptr() == y.data_ptr()  # type: ignore[attr-defined]
    taken = torch.asarray(torch.to_dlpack(y), device="xla", copy=False)  # type: ignore[attr-defined]
    assert value_of(taken).buffer.unsafe_buffer_pointer() == y.data_ptr()
    with torch.device("meta"):
        assert torch.asarray([1, 2]).device.type == "meta"
    assert torch.compile(lambda z: torch.asarray(z) + 1, backend="eager", fullgraph=True)(y).tolist() == [1, 2, 3]
