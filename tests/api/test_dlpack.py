"""Tensors on memory that other libraries use too."""

import gc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.utils import dlpack as torch_dlpack

import torch_xla
from torch_xla.utils.dlpack import from_dlpack, to_dlpack

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64, torch.complex128,
]  # fmt: skip


def values(tensor: torch.Tensor) -> list[float]:
    return sorted(set(tensor.tolist()))


def some(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return (torch.randn(size) * 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 3), (2, 0, 3)], ids=str)
def test_both_ways_keep_values_dtype_and_shape(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    tensor = some(dtype, *size)
    there = from_dlpack(tensor)
    assert (there.device, there.dtype, there.shape) == (torch.device("xla:0"), dtype, tensor.shape)
    assert torch.equal(there.cpu(), tensor)
    back = torch_dlpack.from_dlpack(to_dlpack(there))
    assert back.dtype is dtype and torch.equal(back, tensor)


SOURCES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.arange(6.0).reshape(2, 3),
    "array": lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
    "jax": lambda: jax.numpy.arange(6, dtype=np.float32).reshape(2, 3),
    "capsule of torch": lambda: torch_dlpack.to_dlpack(torch.arange(6.0).reshape(2, 3)),
    "capsule of numpy": lambda: np.arange(6, dtype=np.float32).reshape(2, 3).__dlpack__(),
    "new capsule": lambda: np.arange(6, dtype=np.float32).reshape(2, 3).__dlpack__(max_version=(1, 0)),
    "capsule of ours": lambda: to_dlpack(torch.arange(6.0, device="xla").reshape(2, 3)),
    "capsule of ours by torch": lambda: torch_dlpack.to_dlpack(torch.arange(6.0, device="xla").reshape(2, 3)),
    "ours": lambda: torch.arange(6.0, device="xla").reshape(2, 3),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_memory_comes_from_any_library(make: Callable[[], Any]) -> None:
    x = from_dlpack(make())
    gc.collect()
    assert x.device.type == "xla" and x.dtype is torch.float32
    assert (x @ x.t()).tolist() == [[5, 14], [14, 50]]


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t[0],
        lambda t: t[:1].expand(3, 6),
        lambda t: t.reshape(2, 2, 3, 2).to(memory_format=torch.channels_last),
        lambda t: t[:, 3:][:0],
    ],
)
def test_views_are_shared_as_they_are(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    source = view(torch.randn(4, 6))
    there = from_dlpack(source)
    assert there.stride() == source.stride() and torch.equal(there.cpu(), source)
    assert torch.equal((there + 1).cpu(), source + 1)

    base = torch.randn(4, 6).to("xla")
    ours = view(base)
    back = torch_dlpack.from_dlpack(to_dlpack(ours))
    assert torch.equal(back, ours.cpu())


def test_a_view_of_the_device_is_exported_without_a_copy() -> None:
    base = torch.zeros(4, 6, device="xla")
    whole = torch_dlpack.from_dlpack(to_dlpack(base))
    part = torch_dlpack.from_dlpack(to_dlpack(base[1:, ::2]))
    assert part.stride() == (6, 2)
    part.fill_(3)
    assert torch.equal(whole[1:, ::2], part)
    assert base.sum().item() == 27


def test_other_bits_of_the_same_memory_are_exported() -> None:
    x = torch.arange(6, dtype=torch.int32, device="xla")
    halves = torch_dlpack.from_dlpack(to_dlpack(x.view(torch.int16)[2:]))
    assert torch.equal(halves, torch.arange(6, dtype=torch.int32).view(torch.int16)[2:])
    z = torch.randn(3, dtype=torch.complex64).to("xla")
    assert torch.equal(torch_dlpack.from_dlpack(to_dlpack(torch.view_as_real(z))), torch.view_as_real(z.cpu()))
    assert torch.equal(torch_dlpack.from_dlpack(to_dlpack(z.conj())), z.cpu().conj())


def test_memory_is_shared_not_copied() -> None:
    x = from_dlpack(torch.arange(64.0))
    first = torch_dlpack.from_dlpack(to_dlpack(x))
    second = torch_dlpack.from_dlpack(to_dlpack(x))
    assert first.data_ptr() == second.data_ptr()
    first[0] = 42
    assert x[0].item() == 42 and second[0].item() == 42

    tensor = torch.arange(64.0)
    assert torch_dlpack.from_dlpack(to_dlpack(from_dlpack(tensor))).data_ptr() == tensor.data_ptr()


def test_what_was_recorded_before_does_not_see_later_writes() -> None:
    x = torch.ones(1000, device="xla")
    torch_xla.sync()
    y = x + 1
    clone, copied = x.clone(), torch.empty_like(x).copy_(x)
    torch_dlpack.from_dlpack(to_dlpack(x)).fill_(7)
    assert values(y) == [2]
    assert values(clone) == [1] and values(copied) == [1]
    assert values(x) == [7]


def test_writing_to_the_tensor_leaves_the_shared_memory_alone() -> None:
    source = torch.zeros(8)
    x = from_dlpack(source)
    received = torch_dlpack.from_dlpack(to_dlpack(x))
    x.add_(1)
    torch_xla.sync()
    assert x.tolist() == [1] * 8
    assert source.tolist() == [0] * 8 and received.tolist() == [0] * 8


def test_shared_memory_is_never_given_to_a_program() -> None:
    # Each step overwrites `x`: the buffer it had could be used for the result, were it not shared.
    x = torch.ones(256, device="xla")
    torch_xla.sync()
    received = [torch_dlpack.from_dlpack(to_dlpack(x))]
    for _ in range(5):
        x.mul_(2)
        torch_xla.sync(wait=True)
        received.append(torch_dlpack.from_dlpack(to_dlpack(x)))
    assert [values(tensor) for tensor in received] == [[1], [2], [4], [8], [16], [32]]


def test_memory_lives_as_long_as_somebody_uses_it() -> None:
    def receive() -> torch.Tensor:
        return torch_dlpack.from_dlpack(to_dlpack(torch.arange(1000, device="xla") + 5))

    received = [receive() for _ in range(20)]
    gc.collect()
    assert all(torch.equal(each, torch.arange(1000) + 5) for each in received)

    x = from_dlpack(torch.arange(1000))
    gc.collect()
    junk = [torch.zeros(1000) for _ in range(20)]
    assert torch.equal(x.cpu(), torch.arange(1000)) and len(junk) == 20


def test_a_pending_or_uninitialised_tensor_is_computed_first() -> None:
    assert torch_dlpack.from_dlpack(to_dlpack(torch.ones(2, device="xla") * 3)).tolist() == [3, 3]
    assert torch_dlpack.from_dlpack(to_dlpack(torch.empty(2, 3, device="xla"))).shape == (2, 3)


def test_a_dtype_that_lives_as_another_is_exported_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_BF16", "1")
    x = torch.tensor([1.0, 1.001], device="xla")
    received = torch_dlpack.from_dlpack(to_dlpack(x))
    assert received.dtype is torch.float32 and received.tolist() == [1, 1]


def test_a_capsule_is_taken_once() -> None:
    capsule = torch_dlpack.to_dlpack(torch.ones(2))
    from_dlpack(capsule)
    with pytest.raises(RuntimeError, match=r"from_dlpack\(\) got a capsule called b'used_dltensor'"):
        from_dlpack(capsule)


@pytest.mark.parametrize(
    ("given", "described"), [(torch.ones(2), "one on cpu"), ([1, 2], "a list")], ids=["cpu", "list"]
)
def test_what_is_not_on_the_device_is_refused(given: Any, described: str) -> None:
    with pytest.raises(TypeError) as caught:
        to_dlpack(given)
    assert str(caught.value) == f"to_dlpack() takes a tensor on an xla device; got {described}"


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError) as caught:
        from_dlpack([1, 2])
    assert str(caught.value) == "from_dlpack() takes a DLPack capsule or an object that gives one; got a list"


def test_other_libraries_take_tensors_as_they_are() -> None:
    x = torch.arange(6.0).to("xla").reshape(2, 3)
    array = np.from_dlpack(x)
    np.testing.assert_array_equal(array, x.cpu().numpy())
    assert array.__array_interface__["data"][0] == np.from_dlpack(x).__array_interface__["data"][0]
    np.testing.assert_array_equal(jax.numpy.from_dlpack(x.t()), x.t().cpu().numpy())
    assert torch.from_dlpack(x).device.type in ("cpu", "xla")
    copied = np.from_dlpack(x, copy=True)
    assert copied.__array_interface__["data"][0] != array.__array_interface__["data"][0]
    with pytest.raises(BufferError, match="require gradient, use tensor.detach"):
        np.from_dlpack(x.clone().requires_grad_())
    with pytest.raises(BufferError, match="conjugate bit"):
        np.from_dlpack(torch.ones(2, dtype=torch.complex64, device="xla").conj())
    host = torch.ones(2)
    assert np.from_dlpack(host).tolist() == [1, 1] and host.__dlpack_device__() == (1, 0)


def test_a_stream_is_a_number() -> None:
    with pytest.raises(TypeError, match="stream must be an int or None, not object"):
        torch.ones(1, device="xla").__dlpack__(stream=object())
