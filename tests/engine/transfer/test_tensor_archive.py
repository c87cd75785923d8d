"""Saved data with a file for each memory: what was there stays until all is written."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from torch_xla._engine.transfer import tensor_archive


class Reference(NamedTuple):
    tid: int


def files(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.rglob("*") if each.is_file())


def read(path: Path) -> Any:
    return tensor_archive.read(path, Reference, weights_only=False)


def test_what_is_one_memory_seen_one_way_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    x = torch.tensor([1 + 2j, 3 - 1j], device="xla")
    seen = {"x": x, "again": x.detach(), "conjugate": x.conj(), "part": x[1:], "bits": torch.view_as_real(x)}
    seen["parameter"] = torch.nn.Parameter(x)
    tensor_archive.write({**seen, "n": 5, "host": torch.ones(1)}, path, Reference)
    assert files(path) == ["data", *(f"tensor_{n}.pt" for n in range(5))]
    found = read(path)
    assert found["n"] == 5 and found["host"].tolist() == [1] and found["x"] is found["again"]
    for name, tensor in seen.items():
        assert found[name].device.type == "cpu" and found[name].tolist() == tensor.tolist()
    assert isinstance(found["parameter"], torch.nn.Parameter)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    tensor_archive.write([torch.ones(2, device="xla")], path, Reference)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):  # the last from Python 3.14 on
        tensor_archive.write([torch.zeros(2, device="xla"), lambda: 1], path, Reference)
    assert read(path)[0].tolist() == [1, 1]
    tensor_archive.write([torch.full((3,), 2, device="xla")], path, Reference)  # what the failure left is no obstacle
    assert read(path)[0].tolist() == [2, 2, 2] and files(path) == ["data", "tensor_0.pt"]


def test_a_number_from_a_file_names_no_other_folder(tmp_path: Path) -> None:
    path = tmp_path / "data"
    tensor_archive.write([torch.ones(2, device="xla")], path, lambda _: Reference("../../secret"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="invalid literal for int"):
        read(path)
