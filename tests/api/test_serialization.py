"""Saving tensors one by one."""

import gc
import pickle
import weakref
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser


def files(path: Path) -> list[str]:
    return sorted(file.name for file in Path(f"{path}.tensors").iterdir())


def test_a_model_and_its_optimizer_come_back(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3, device="xla")).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "first"}
    xser.save(state, path)
    loaded = xser.load(path)
    expected = xm._maybe_convert_to_cpu(state)
    assert (loaded["epoch"], loaded["name"]) == (3, "first")
    assert type(loaded["model"]) is OrderedDict and list(loaded["model"]) == list(expected["model"])
    for name, tensor in expected["model"].items():
        assert loaded["model"][name].device.type == "cpu" and torch.equal(loaded["model"][name], tensor)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert torch.equal(
        optimizer.state_dict()["state"][0]["exp_avg"].cpu(), expected["optimizer"]["state"][0]["exp_avg"]
    )


def test_each_tensor_of_the_device_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    xser.save([torch.ones(2, device="xla"), {"x": torch.zeros(3, device="xla")}, torch.ones(1)], str(path))
    assert files(path) == ["tensor_0.pt", "tensor_1.pt"]
    assert torch.load(f"{path}.tensors/tensor_1.pt").tolist() == [0, 0, 0]
    raw = torch.load(path, weights_only=False)
    assert raw[0] == xser.TensorReference(0) and raw[1]["x"].tid == 1
    assert raw[2].tolist() == [1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 3)[1:, ::2],
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0, 3),
        torch.randn(3).bfloat16(),
        torch.tensor([2**40, -1]),
        torch.randn(3, dtype=torch.complex64),
    ],
    ids=lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}",
)
def test_values_dtypes_and_shapes_survive(tmp_path: Path, tensor: torch.Tensor) -> None:
    xser.save(tensor.to("xla"), tmp_path / "x")
    loaded = xser.load(tmp_path / "x")
    assert loaded.dtype is tensor.dtype and torch.equal(loaded, tensor)


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    path = tmp_path / "tied"
    model = nn.Module()
    model.embedding, model.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    model.head.weight = model.embedding.weight
    state = model.to("xla").state_dict()
    xser.save({**state, "view": state["head.weight"][1:]}, path)
    assert len(files(path)) == 2
    loaded = xser.load(path)
    assert loaded["embedding.weight"] is loaded["head.weight"]
    assert torch.equal(loaded["view"], loaded["head.weight"][1:])


def test_parameters_stay_parameters(tmp_path: Path) -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    data = [
        nn.Parameter(torch.ones(2)).xla(),
        torch.ones(2, device="xla", requires_grad=True),
        nn.Linear(2, 2).xla().bias,
    ]
    xser.save({"data": data, "frozen": nn.ParameterList([frozen]).to("xla")[0]}, tmp_path / "p")
    loaded = xser.load(tmp_path / "p")
    assert [type(each) for each in loaded["data"]] == [torch.Tensor, torch.Tensor, nn.Parameter]
    assert [each.requires_grad for each in loaded["data"]] == [True, True, True]
    assert type(loaded["frozen"]) is nn.Parameter and not loaded["frozen"].requires_grad


@pytest.mark.slow
def test_one_tensor_at_a_time_is_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0
    save = torch.save

    def watched(data: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal most
        if isinstance(data, torch.Tensor):
            gc.collect()
            alive.append(weakref.ref(data))
            most = max(most, sum(ref() is not None for ref in alive))
        save(data, *args, **kwargs)

    monkeypatch.setattr(torch, "save", watched)
    xser.save([torch.full((10,), i, device="xla") for i in range(4)], tmp_path / "data")
    assert len(alive) == 4 and most == 1
    assert [each[0].item() for each in xser.load(tmp_path / "data")] == [0, 1, 2, 3]


def test_saving_again_leaves_nothing_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    xser.save([torch.ones(1, device="xla"), torch.zeros(1, device="xla")], path)
    xser.save([torch.full((1,), 7.0, device="xla")], path)
    assert files(path) == ["tensor_0.pt"]
    assert [each.tolist() for each in xser.load(path)] == [[7]]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "data.tensors"]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    xser.save({"x": torch.ones(2, device="xla")}, path)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        xser.save({"x": torch.zeros(2, device="xla"), "f": lambda: None}, path)
    assert xser.load(path)["x"].tolist() == [1, 1]
    xser.save({"x": torch.zeros(2, device="xla")}, path)
    assert xser.load(path)["x"].tolist() == [0, 0]


def test_objects_that_could_run_code_need_trust(tmp_path: Path) -> None:
    path = tmp_path / "data"
    xser.save(Namespace(x=torch.ones(1, device="xla"), rate=0.1), path)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        xser.load(path)
    loaded = xser.load(path, weights_only=False)
    assert loaded.x.tolist() == [1] and loaded.rate == 0.1


def test_what_is_saved_is_not_changed(tmp_path: Path) -> None:
    x = torch.ones(1, device="xla")
    data = {"x": [x]}
    xser.save(data, tmp_path / "data", master_only=False)
    assert data["x"][0] is x


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        xser.save([torch.ones(1, device="xla")], tmp_path / "nowhere" / "data")
