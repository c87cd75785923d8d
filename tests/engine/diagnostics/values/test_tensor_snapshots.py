"""Tensors in two folders, and where they differ."""

import os
from pathlib import Path

import pytest
import torch

from torch_xla._engine.diagnostics.values import tensor_snapshots


def differences(one: torch.Tensor, other: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> list[str]:
    return tensor_snapshots.compare_tensors(one, other, rtol, atol, 2).splitlines()


def test_elements_within_the_tolerance_agree() -> None:
    one = torch.tensor([1.0, 100.0])
    assert differences(one, one + 0.5, atol=0.5) == [] and differences(one, one * 1.01, rtol=0.0101) == []
    assert differences(one, one + 0.5, atol=0.25) == [
        "  2 of 2 elements differ, by 0.5 at most:",
        "    [0]: 1 and 1.5",
        "    [1]: 100 and 100.5",
    ]


def test_large_integers_are_compared_exactly() -> None:
    assert differences(torch.tensor([2**53, 3]), torch.tensor([2**53 + 1, 3])) == [
        "  1 of 2 elements differ, by 1 at most:",
        "    [0]: 9007199254740992 and 9007199254740993",
    ]
    assert differences(torch.tensor(True), torch.tensor(False)) == [
        "  1 of 1 elements differ, by 1 at most:",
        "    []: 1 and 0",
    ]


def test_dtypes_complex_numbers_and_scalars() -> None:
    assert differences(torch.tensor([1, 2]), torch.tensor([1.0, 2.0])) == [
        "  dtypes differ: torch.int64 and torch.float32"
    ]
    assert differences(torch.tensor(1 + 2j), torch.tensor(1 + 0j))[1] == "    []: 1+2j and 1+0j"
    assert differences(torch.tensor(float("nan")), torch.tensor(float("nan"))) == []
    assert "by inf at most" in differences(torch.tensor(float("inf")), torch.tensor(1.0))[0]


def test_what_is_saved_goes_to_the_folder_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_snapshots, "_chosen", tensor_snapshots._UNSET)
    tensor_snapshots.save("x", torch.ones(1), None)  # no folder is set
    tensor_snapshots.configure(tmp_path)
    x = torch.ones(2, requires_grad=True)
    tensor_snapshots.save("layers/0", x.to("xla"), 3)
    tensor_snapshots.save("loss", x, None)
    tensor_snapshots.configure(None)
    tensor_snapshots.save("nothing", x, None)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.pt")) == [
        os.path.join("3", "layers.0.pt"),
        "loss.pt",
    ]
    loaded = torch.load(tmp_path / "3" / "layers.0.pt")
    assert loaded.device.type == "cpu" and not loaded.requires_grad and loaded.tolist() == [1, 1]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder of saved tensors"):
        tensor_snapshots.compare_folders(tmp_path, tmp_path / "none", 0.0, 0.0, 5)
