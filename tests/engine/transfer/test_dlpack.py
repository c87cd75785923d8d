"""Memory is shared with other libraries where it can be, and kept from programs that would take it."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.four_behind_one import on, spread_device
from torch_xla._engine.runtime import buffers
from torch_xla._engine.runtime.device_assignment import Target
from torch_xla._engine.tensor.storage import value_of
from torch_xla._engine.transfer import dlpack


def pointer(x: torch.Tensor) -> int:
    return int(value_of(x).buffer.unsafe_buffer_pointer())


def test_what_is_exported_is_the_memory_itself_and_is_never_given_away() -> None:
    x = torch.arange(1024.0).to("xla")
    taken = torch.utils.dlpack.from_dlpack(dlpack.export(x))
    assert taken.data_ptr() == pointer(x) and value_of(x).shared
    y = x * 2
    del x
    torch_xla.sync(wait=True)
    assert taken[3].item() == 3 and y[3].item() == 6


def test_a_clone_gets_memory_of_its_own_before_somebody_may_write_to_it() -> None:
    x = torch.arange(4.0).to("xla")
    clone = x.clone()
    torch_xla.sync()
    taken = torch.utils.dlpack.from_dlpack(dlpack.export(clone))
    taken.fill_(7)
    assert x.tolist() == [0, 1, 2, 3] and clone.tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize(
    "view", [lambda x: x[1:, ::2], lambda x: x.t(), lambda x: x.view(torch.int32), lambda x: x[0, 1]], ids=range(4)
)
def test_a_view_is_exported_with_its_strides_and_without_a_copy(view: Any) -> None:
    x = torch.arange(12.0).view(3, 4).to("xla")
    shown = view(x)
    taken = torch.utils.dlpack.from_dlpack(dlpack.export(shown))
    assert taken.tolist() == shown.tolist() and taken.stride() == shown.stride()
    assert taken.data_ptr() == pointer(x) + shown.storage_offset() * shown.element_size()


def test_a_conjugate_is_exported_as_it_is_seen() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j], device="xla").conj()
    assert torch.utils.dlpack.from_dlpack(dlpack.export(z)).tolist() == [1 - 2j, 3 + 1j]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
def test_memory_of_others_is_taken_with_its_strides(order: tuple[int, int]) -> None:
    host = torch.arange(64.0 * 64).view(64, 64).permute(order)
    taken = dlpack.adopt(host)
    assert taken.device.type == "xla" and taken.stride() == host.stride() and taken.tolist() == host.tolist()
    assert value_of(taken).shared
    array = np.arange(6).reshape(2, 3)
    assert dlpack.adopt(array).tolist() == array.tolist()
    x = torch.ones(1, device="xla")
    assert value_of(dlpack.adopt(x)) is value_of(x)


class _Elsewhere:
    """Host memory that claims to be of another kind."""

    def __init__(self, kind: int, tensor: torch.Tensor) -> None:
        self.kind, self.tensor = kind, tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **others: Any) -> Any:
        return self.tensor.__dlpack__()


def test_pinned_memory_is_memory_of_the_host() -> None:
    assert dlpack.adopt(_Elsewhere(3, torch.arange(3.0))).tolist() == [0, 1, 2]


def test_a_capsule_from_cuda_is_taken_when_pytorch_has_computed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    stream = SimpleNamespace(synchronize=lambda: said.append("waited"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: said.append(index) or stream)
    monkeypatch.setattr(dlpack.buffers, "adopted", lambda exporter: jnp.ones(2))
    monkeypatch.setattr(dlpack, "_Exporter", lambda capsule: _Elsewhere(2, capsule))
    assert dlpack.adopt(SimpleNamespace()).tolist() == [1, 1] and said == [0, "waited"]
    dlpack.adopt(_Elsewhere(2, torch.ones(2)))  # is asked for its memory with a stream, which orders the two
    assert len(said) == 2


def test_what_has_no_memory_to_share_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^to_dlpack\(\) takes a tensor on an xla device; got one on cpu$"):
        dlpack.export(torch.ones(1))
    with pytest.raises(
        TypeError, match=r"^from_dlpack\(\) takes a DLPack capsule or an object that gives one; got a int"
    ):
        dlpack.adopt(5)
    capsule = dlpack.export(torch.ones(1, device="xla"))
    dlpack.adopt(capsule)
    with pytest.raises(RuntimeError, match="got a capsule called b'used_dltensor.* A capsule can be taken once"):
        dlpack.adopt(capsule)
    with spread_device() as device, pytest.raises(RuntimeError, match="the tensor is on 4 devices; a capsule has one"):
        dlpack.export(on(device, torch.ones(4)))


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[1:, ::2], lambda x: x.t(), lambda x: x.view(torch.int32)], ids=range(4)
)
def test_memory_that_was_lent_comes_back_as_the_same_storage(view: Any) -> None:
    x = torch.arange(12.0).view(3, 4).to("xla")
    shown = view(x)
    for source in (dlpack.export(shown), torch.utils.dlpack.from_dlpack(dlpack.export(shown))):
        back = dlpack.adopt(source)
        assert back.untyped_storage() is x.untyped_storage() and back.data_ptr() == shown.data_ptr()
        assert back.stride() == shown.stride() and back.tolist() == shown.tolist()
    dlpack.adopt(dlpack.export(shown)).zero_()
    assert shown.tolist() == torch.zeros_like(shown).tolist() and x.sum().item() in (0, 66 - 4 - 6 - 8 - 10)


def test_memory_that_was_lent_and_is_shown_otherwise_or_left_since_is_memory_like_any_other() -> None:
    x = torch.arange(9.0).view(3, 3).to("xla")
    turned = dlpack.adopt(np.from_dlpack(x).T)
    assert turned.tolist() == x.t().tolist() and turned.untyped_storage() is not x.untyped_storage()
    capsule = dlpack.export(x)
    x += 1
    kept = dlpack.adopt(capsule)
    assert kept.untyped_storage() is not x.untyped_storage() and kept[0].tolist() == [0, 1, 2]
    capsule = dlpack.export(x)
    wanted = x.tolist()
    del x
    assert not dlpack.is_lent(capsule) and dlpack.adopt(capsule).tolist() == wanted
    assert turned.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_elsewhere_than_on_a_cpu_what_is_lent_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # JAX would show what it has copied to the host before.
    copies: list[Any] = []
    copied = buffers.copied
    monkeypatch.setattr(buffers, "copied", lambda buffer: copies.append(buffer) or copied(buffer))
    x = torch.ones(3, device="xla") * 2
    there = torch.utils.dlpack.from_dlpack(dlpack.export(x))
    own = torch.ones(3, device="xla") * 3
    monkeypatch.setattr(Target, "is_host", False)
    for _ in range(2):
        there.add_(1)
        assert torch.equal(x.cpu(), there)
    assert len(copies) == 2
    own.cpu()
    assert len(copies) == 2
