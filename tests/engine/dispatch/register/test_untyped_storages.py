"""Storages of the device do what those of the CPU do; those of every other device are left alone."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import UntypedStorage

from torch_xla._engine.dispatch.register import untyped_storages
from torch_xla._engine.transfer import storage_bytes

HOST = torch.arange(6, dtype=torch.int16).view(2, 3)


def storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


def test_bytes_are_read_and_written_as_on_the_cpu() -> None:
    for device in ("cpu", "xla"):
        x = HOST.to(device, copy=True)
        bytes_ = storage(x)
        assert (len(bytes_), bytes_.size(), bytes_.nbytes()) == (12, 12, 12)
        assert bytes_.tolist() == list(bytes_) == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0] and bytes_[4] == 2
        bytes_[2] = 7
        assert x.tolist() == [[0, 7, 2], [3, 4, 5]]
        bytes_.fill_(1)
        assert x.tolist() == [[257] * 3] * 2
        assert bytes_.new().nbytes() == 0 and bytes_.new().device == x.device


def test_addresses_tell_memory_apart_and_follow_offsets() -> None:
    x, y = HOST.to("xla"), HOST.to("xla")
    assert x.data_ptr() == storage(x).data_ptr() == x.detach().data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() - x.data_ptr() == 6 and x[1:].data_ptr() % 2 == 0
    assert x[:0].data_ptr() == HOST[:0].clone().data_ptr() == 0
    assert not x.data_ptr() <= y.data_ptr() < x.data_ptr() + 12
    before = x.data_ptr()
    storage(x).resize_(6)
    assert x.data_ptr() == before
    storage(x).resize_(1000)
    assert x.data_ptr() != before and storage(x).data_ptr() == x.data_ptr()


def test_a_storage_is_made_by_size_or_of_bytes() -> None:
    assert torch.UntypedStorage(5, device="xla").nbytes() == 5
    assert torch.UntypedStorage([1, 2, 3], device="xla").tolist() == [1, 2, 3]
    assert torch.UntypedStorage(5).device.type == "cpu" and torch.UntypedStorage(device="xla").nbytes() == 0


def test_a_storage_goes_to_a_file_and_comes_back() -> None:
    file = io.BytesIO()
    torch.save({"x": HOST.to("xla"), "row": HOST.to("xla")[1]}, file)
    file.seek(0)
    found = torch.load(file)
    assert found["x"].device.type == "xla" and found["x"].tolist() == HOST.tolist()
    assert found["row"].tolist() == [3, 4, 5]


@pytest.mark.parametrize("is_real", [False, True])
def test_a_storage_goes_to_a_file_of_the_old_format_and_comes_back(is_real: bool, tmp_path: Path) -> None:
    with open(tmp_path / "saved", "w+b") if is_real else io.BytesIO() as file:
        torch.save(HOST.to("xla"), file, _use_new_zipfile_serialization=False)
        file.seek(0)
        found = torch.load(file)
    assert found.device.type == "xla" and found.tolist() == HOST.tolist()


@pytest.mark.parametrize("read", [list, UntypedStorage.tolist])
def test_all_bytes_are_read_at_once(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[UntypedStorage] = []

    def counted(storage: UntypedStorage) -> UntypedStorage:
        copies.append(storage)
        return HOST.untyped_storage()

    monkeypatch.setattr(storage_bytes, "host_copy", counted)
    assert read(storage(HOST.to("xla"))) == HOST.untyped_storage().tolist() and len(copies) == 1


def test_copies_of_tensors_on_one_storage_are_on_one() -> None:
    x = HOST.to("xla").float()
    first, second, turned = copy.deepcopy([x, x[1:], x.t()])
    first.add_(1)
    assert second.tolist() == [[4, 5, 6]] and turned.stride() == (1, 3) and x[0, 0].item() == 0
    assert first.device == x.device


def test_deepcopy_keeps_what_hangs_on_a_tensor() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    (x * 3).sum().backward()
    x.note = ["text"]  # type: ignore[attr-defined]
    made = copy.deepcopy(x)
    assert made.requires_grad and made.grad.tolist() == [3, 3] and made.grad is not x.grad  # type: ignore[union-attr]
    assert made.note == ["text"] and made.note is not x.note  # type: ignore[attr-defined]
    z = torch.tensor([1 + 2j], device="xla").conj()
    assert copy.deepcopy(z).tolist() == [1 - 2j]
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)


def test_memory_of_the_device_is_not_shared_and_is_sent_as_a_copy() -> None:
    x = HOST.to("xla")
    assert not storage(x).is_shared()
    with pytest.raises(RuntimeError, match="memory of an xla device cannot be shared between processes; share a copy"):
        x.share_memory_()
    sent = pickle.loads(ForkingPickler.dumps(storage(x)))
    assert sent.device == x.device and sent.tolist() == storage(x).tolist()
    assert storage(HOST.clone()).share_memory_().is_shared()


def test_what_cannot_be_sent_is_told_to_the_receiver() -> None:
    with pytest.raises(RuntimeError, match="^A tensor on an xla device could not be sent from another process: why$"):
        untyped_storages._refused("why")


def test_bytes_outside_are_refused_and_values_are_bytes_as_on_the_cpu() -> None:
    for device in ("cpu", "xla"):
        bytes_ = storage(torch.zeros(3, dtype=torch.uint8, device=device))
        for index in (3, -1):
            with pytest.raises(RuntimeError, match="^out of bounds"):
                bytes_[index] = 1
        assert bytes_.fill_(300).tolist() == [44] * 3 and bytes_.fill_(-1).tolist() == [255] * 3
