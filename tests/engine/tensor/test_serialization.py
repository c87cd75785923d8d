"""Saving and loading preserves shared memory, devices and views of tensors."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch.nn import Parameter

import torch_xla
from tests.support.twins import check_same, numbers, plain
from torch_xla._engine.metrics import counters


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


def reloaded(saved: Any, **options: Any) -> Any:
    """`saved` after `torch.save` and `torch.load`."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, **options)


def various(d: str) -> dict[str, torch.Tensor]:
    x = n(2, 3, d=d)
    return {
        "plain": x,
        "row": x[1],
        "transposed": x.t(),
        "parameter": Parameter(x.clone()),
        "bfloat16": x.bfloat16(),
        "half": x.half(),
        "double": x.double(),
        "int64": x.long(),
        "bool": x > 1,
        "complex": x * 1j,
        "scalar": x.sum(),
        "empty": x[:0],
    }


def test_a_saved_dictionary_comes_back_as_it_was() -> None:
    check_same(lambda d: reloaded(various(d)))


def test_a_pickle_comes_back_as_it_was() -> None:
    check_same(lambda d: pickle.loads(pickle.dumps(list(various(d).values()))))


def test_tensors_that_share_memory_share_it_after_loading() -> None:
    def use(d: str) -> Any:
        x = n(2, 3, d=d)
        first, flat, again = reloaded([x, x.view(-1), x])
        first.add_(1)
        return first, flat, again

    check_same(use)


def test_a_tied_weight_is_saved_once() -> None:
    x = torch.ones(1000, device="xla")
    one, two = io.BytesIO(), io.BytesIO()
    torch.save({"a": x}, one)
    torch.save({"a": x, "b": x.detach()}, two)
    assert len(two.getvalue()) < len(one.getvalue()) + 1000


@pytest.mark.parametrize("target", ["cpu", torch.device("cpu"), {"xla:0": "cpu"}, lambda storage, location: storage])
def test_device_tensors_can_be_loaded_on_the_host(target: Any) -> None:
    loaded = reloaded(various("xla"), map_location=target)
    for name, tensor in various("cpu").items():
        assert loaded[name].device.type == "cpu", name
        assert torch.equal(plain(loaded[name]), plain(tensor)), name


@pytest.mark.parametrize("target", ["xla", "xla:0", torch.device("xla"), torch.device("xla", 0), {"cpu": "xla:0"}])
def test_host_tensors_can_be_loaded_on_the_device(target: Any) -> None:
    loaded = reloaded(various("cpu"), map_location=target)
    for name, tensor in various("cpu").items():
        assert loaded[name].device == torch.device("xla:0"), name
        assert loaded[name].stride() == tensor.stride(), name
        assert torch.equal(plain(loaded[name].cpu()), plain(tensor)), name


def test_a_file_can_be_mapped_into_memory(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(6.0)}, tmp_path / "file")
    loaded = torch.load(tmp_path / "file", map_location="xla", mmap=True)
    assert loaded["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_old_format_of_files_works() -> None:
    file = io.BytesIO()
    torch.save(various("xla"), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    loaded = torch.load(file)
    assert all(torch.equal(plain(loaded[name].cpu()), plain(tensor)) for name, tensor in various("cpu").items())


def test_a_loaded_parameter_needs_no_work_before_it_is_used() -> None:
    weights = reloaded(nn.Linear(3, 2).state_dict(), map_location="xla")
    module = nn.Linear(3, 2).to("xla")
    module.load_state_dict(weights, assign=True)
    torch_xla.sync()
    counters.clear()
    module(torch.ones(1, 3, device="xla"))
    torch_xla.sync()
    assert counters.value_of("xla::read_view") is None


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("assign", [True, False])
def test_a_state_dict_moves_between_devices(assign: bool) -> None:
    source, there, back = network(), network().to("xla"), network()
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1)
    there.load_state_dict(copy.deepcopy(source.state_dict()))
    back.load_state_dict({name: tensor.cpu() for name, tensor in there.state_dict().items()}, assign=assign)
    there.load_state_dict(there.state_dict(), assign=assign)
    for name, tensor in source.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
        assert torch.equal(there.state_dict()[name].cpu(), tensor)
    assert all(p.device.type == "xla" for p in there.parameters())


def test_a_whole_module_can_be_saved() -> None:
    check_same(lambda d: dict(reloaded(network().to(d), weights_only=False).state_dict()))


def test_an_optimizer_continues_where_it_was_saved() -> None:
    def use(d: str) -> Any:
        torch.manual_seed(0)
        m = nn.Linear(2, 3).to(d)
        first = torch.optim.AdamW(m.parameters())
        for p in m.parameters():
            p.grad = torch.ones_like(p)
        first.step()
        second = torch.optim.AdamW(m.parameters())
        second.load_state_dict(reloaded(copy.deepcopy(first.state_dict())))
        second.step()
        state = second.state_dict()["state"][0]
        return [p.detach() for p in m.parameters()], state["step"].item(), state["exp_avg"]

    check_same(use)


def test_safetensors_round_trip(tmp_path: Path) -> None:
    tensors = {"a": n(2, 3, d="xla"), "b": n(2, d="xla").bfloat16(), "c": n(3, d="xla", dtype=torch.int64)}
    save_file(tensors, tmp_path / "file")
    on_host, there = load_file(tmp_path / "file"), load_file(tmp_path / "file", device="xla")
    for name, tensor in tensors.items():
        assert there[name].device.type == "xla"
        assert torch.equal(on_host[name], tensor.cpu())
        assert torch.equal(there[name].cpu(), tensor.cpu())


def test_safetensors_refuse_shared_memory_as_on_the_cpu(tmp_path: Path) -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"a": x, "b": x}, tmp_path / "file")
    save_file({"a": x, "b": torch.ones(2, device="xla")}, tmp_path / "file")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight


def test_safetensors_save_a_tied_module(tmp_path: Path) -> None:
    source, target = Tied().to("xla"), Tied().to("xla")
    save_model(source, str(tmp_path / "file"))
    load_model(target, str(tmp_path / "file"))
    assert target.a.weight is target.b.weight
    assert torch.equal(target.b.weight.cpu(), source.a.weight.cpu())
