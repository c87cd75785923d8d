"""Saving and moving nested data."""

import copy
import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs


def saved(data: Any, **kwargs: Any) -> Any:
    file = io.BytesIO()
    xm.save(data, file, **kwargs)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_what_is_saved_loads_on_the_cpu(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).to("xla")
    path = tmp_path / "model.pt"
    xm.save({"model": model.state_dict(), "epoch": 3, "history": [torch.ones(2, device="xla"), None]}, str(path))
    loaded = torch.load(path)
    assert {t.device.type for t in [*loaded["model"].values(), loaded["history"][0]]} == {"cpu"}
    assert torch.equal(loaded["model"]["weight"], model.weight.cpu())
    assert loaded["epoch"] == 3 and loaded["history"][1] is None
    assert model.weight.device.type == "xla"


def test_saving_leaves_the_optimizer_as_it_is() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    loaded = saved(optimizer.state_dict())
    assert loaded["state"][0]["exp_avg"].device.type == "cpu"
    assert optimizer.state[weight]["exp_avg"].device.type == "xla"


def test_tied_weights_stay_tied_in_the_file() -> None:
    weight = torch.ones(2, device="xla")
    loaded = saved({"embedding": weight, "head": weight.detach(), "other": weight.clone()})
    loaded["embedding"][0] = 5
    assert loaded["head"].tolist() == [5, 1]
    assert loaded["other"].tolist() == [1, 1]


def test_a_whole_module_is_saved_as_one_of_the_cpu() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("xla")
    loaded = saved(model)
    assert all(type(p) is nn.Parameter and p.device.type == "cpu" and p.requires_grad for p in loaded.parameters())
    assert all(buffer.device.type == "cpu" for buffer in loaded.buffers())
    assert next(model.parameters()).device.type == "xla"
    x = torch.randn(4, 2)
    assert torch.equal(loaded(x), copy.deepcopy(model).cpu()(x))


def test_views_gradients_and_dtypes_arrive_as_they_are() -> None:
    base = torch.arange(6.0, device="xla").reshape(2, 3)
    data = {
        "view": base.t(),
        "slice": base[:, 1],
        "bf16": base.bfloat16(),
        "bool": base > 2,
        "empty": base[:0],
        "scalar": torch.tensor(3, device="xla"),
        "leaf": torch.ones(1, device="xla", requires_grad=True),
        "parameter": nn.Parameter(torch.ones(1, device="xla"), requires_grad=False),
    }
    result = xm._maybe_convert_to_cpu(data)
    for name, tensor in data.items():
        found = result[name]
        assert (found.device.type, found.dtype, found.shape) == ("cpu", tensor.dtype, tensor.shape)
        assert found.requires_grad == tensor.requires_grad and type(found) is type(tensor)
        assert found.tolist() == tensor.tolist()


def test_everything_pending_is_computed_in_one_program() -> None:
    data = [torch.ones(2, device="xla") * i for i in range(5)]
    met.clear_all()
    result = xm._maybe_convert_to_cpu(data)
    assert [t.tolist() for t in result] == [[i, i] for i in range(5)]
    assert met.metric_data("ExecuteTime")[0] == 1  # type: ignore[index]


def test_without_conversion_nothing_changes() -> None:
    data = [torch.ones(1, device="xla")]
    assert xm._maybe_convert_to_cpu(data, convert=False) is data


def test_cpu_tensors_are_sent_and_the_containers_given_stay_as_they_are() -> None:
    x = torch.ones(2, requires_grad=True)
    there = torch.zeros(1, device="xla")
    data = OrderedDict(batch=(x, torch.tensor([1], dtype=torch.int16)), there=there, name="a")
    result = xm.send_cpu_data_to_device(data, xm.xla_device())
    assert type(result) is OrderedDict and type(result["batch"]) is tuple
    assert [t.device.type for t in result["batch"]] == ["xla", "xla"]
    assert result["batch"][0].requires_grad and result["batch"][0].is_leaf
    assert result["batch"][1].dtype is torch.int16
    assert result["there"] is there and result["name"] == "a"
    assert data["batch"][0] is x


def test_inputs_are_divided_over_a_mesh() -> None:
    spec = xs.ShardingSpec(xs.Mesh([0], (1,), ("data",)), ("data",))
    x, y = xm.send_cpu_data_to_device([torch.ones(2), torch.ones(2, 2)], "xla", input_sharding=spec)
    assert x.tolist() == [1, 1] and y.device.type == "xla"


@pytest.mark.parametrize("spec", [None, xs.ShardingSpec(xs.Mesh([0], (1,), ("data",)), ("data",))])
def test_of_one_tensor_a_list_comes_back(spec: Any) -> None:
    found = xm.send_cpu_data_to_device(torch.tensor([1.0, 2.0]), "xla", spec)
    assert isinstance(found, list) and len(found) == 1
    assert found[0].device.type == "xla" and found[0].tolist() == [1, 2]


def test_tensors_that_share_memory_differently_are_found() -> None:
    x = torch.ones(4, device="xla")
    xm.check_view_sharing({"a": x, "b": [x, x.detach(), torch.ones(4, device="xla")]})
    with pytest.raises(RuntimeError) as error:
        xm.check_view_sharing([x, x[1:3]])
    assert str(error.value) == (
        "two tensors are views of one storage: one of shape [4], torch.float32, one of shape [2], torch.float32. "
        "Clone one of them."
    )


def test_only_chosen_ordinals_act_and_get_data_of_the_cpu() -> None:
    x = torch.ones(2, device="xla")
    assert xm.do_on_ordinals(lambda t: t.device.type, x) == "cpu"
    assert xm.do_on_ordinals(lambda a, b: (a.device.type, b), (x, 3), ordinals=0) == ("cpu", 3)
    assert xm.do_on_ordinals(lambda t: 1, x, ordinals={1}) is None
