"""Modules move to the device and back with the Parameter objects they have."""

import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.twins import check_same


def trained(device: str, optimizer_first: bool, used_before: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1) if optimizer_first else None
    if used_before:
        model(torch.ones(2, 3)).sum().backward()
    model.to(device)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3, device=device)).pow(2).sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("used_before", [False, True])
def test_an_optimizer_made_before_the_move_trains_the_moved_parameters(used_before: bool) -> None:
    expected = trained("cpu", optimizer_first=False)
    for ours, theirs in zip(trained("xla", optimizer_first=True, used_before=used_before), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_parameters_are_the_same_objects_after_every_move() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LSTM(2, 2))
    before = dict(model.named_parameters())
    for move in (
        lambda: model.to("xla"),
        lambda: model.cpu(),
        lambda: model.xla(),  # type: ignore[operator]
        lambda: model.to("cpu", torch.float64),
        lambda: model.to(torch.float32).to("xla"),
        lambda: model.to_empty(device="cpu"),
    ):
        move()
        after = dict(model.named_parameters())
        assert all(after[name] is before[name] for name in before)
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in after.values())


def test_tied_weights_stay_tied() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    model.to("xla")
    assert model["head"].weight is model["embedding"].weight
    assert len(list(model.parameters())) == 1
    with torch.no_grad():
        model["head"].weight.fill_(2)
    assert model["embedding"](torch.tensor([0], device="xla")).tolist() == [[2, 2, 2]]


def test_gradients_move_along() -> None:
    def use(d: str) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        model(torch.ones(3, 2)).sum().backward()
        model.to(d)
        assert model.weight.grad is not None and model.weight.grad.device.type == d
        model(torch.ones(3, 2, device=d)).sum().backward()
        return model.weight.grad.clone()

    check_same(use)


def test_hooks_attributes_and_weak_references_stay() -> None:
    model = nn.Linear(2, 1)
    seen: list[str] = []
    model.weight.register_hook(lambda g: seen.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    model.weight.note = "kept"  # type: ignore[attr-defined]
    reference = weakref.ref(model.weight)
    model.to("xla")
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert seen == ["hook", "accumulated"]
    assert reference() is model.weight
    assert model.weight.note == "kept"  # type: ignore[attr-defined]


def test_backward_of_a_graph_from_before_the_move_is_refused() -> None:
    model = nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    weight = model.weight
    model.to("xla")
    assert model.weight is weight
    with pytest.raises(RuntimeError, match="before its module moved"):
        loss.backward()
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[1, 1]]


def test_buffers_frozen_parameters_and_dtypes_move() -> None:
    def use(d: str) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[0].weight.requires_grad_(False)
        model.to(d)
        model.to(torch.bfloat16)
        flags = [p.requires_grad for p in model.parameters()]
        return [p.detach() for p in model.parameters()], list(model.buffers()), flags

    check_same(use)


def test_moves_between_other_devices_are_left_to_pytorch() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    model.double()
    assert model.weight is weight
    moved = nn.Linear(2, 2, device="meta").to_empty(device="xla")
    assert moved.weight.device.type == "xla"
    with pytest.raises(NotImplementedError, match="no data"):
        nn.Linear(2, 2, device="meta").to("xla")


def test_modules_can_be_made_on_the_device() -> None:
    with torch.device("xla"):
        model = nn.Linear(2, 2)
    assert model.weight.device == torch.device("xla:0")
    assert nn.Linear(2, 2, device="xla").bias.device.type == "xla"
    assert torch.nn.utils.skip_init(nn.Linear, 2, 2, device="xla").weight.device.type == "xla"


def test_a_recurrent_module_computes_what_it_computes_on_the_cpu() -> None:
    def use(d: str) -> Any:
        torch.manual_seed(0)
        model = nn.LSTM(2, 3, num_layers=2, batch_first=True).to(d)
        output, (hidden, cell) = model(torch.linspace(-1, 1, 20).reshape(2, 5, 2).to(d))
        output.sum().backward()
        return output.detach(), hidden.detach(), cell.detach(), [p.grad for p in model.parameters()]

    check_same(use, strides=False, rtol=1e-5, atol=1e-5)


def test_lazy_modules_move_before_they_know_their_shapes() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3))
    parameters = list(model.parameters())
    model.to("xla")
    assert all(ours is before for ours, before in zip(model.parameters(), parameters, strict=True))
    x = torch.randn(2, 3, 5, 5)
    model(x.to("xla")).square().sum().backward()
    assert [p.device.type for p in (*model.parameters(), *model.buffers())] == ["xla"] * 9
    on_cpu = (
        nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3)).to("xla").to("cpu")
    )
    on_cpu.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(x.to("xla")).cpu(), on_cpu.eval()(x))
    assert model[3].weight.grad.device.type == "xla"


def test_a_module_moved_during_inference_can_still_be_trained() -> None:
    model = nn.Linear(2, 1)
    before = dict(model.named_parameters())
    with torch.inference_mode():
        model.to("xla")
        assert model(torch.ones(1, 2, device="xla")).device.type == "xla"
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not model.weight.is_inference()
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1, 1]]
    with torch.inference_mode():
        model.cpu()
    assert model.weight.device.type == "cpu"


def test_a_module_made_during_inference_moves() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 1)
    model.to("xla")
    assert model.weight.is_inference()
    with torch.inference_mode():
        model.to("cpu").to("xla")
        assert model(torch.ones(1, 2, device="xla")).shape == (1, 1)


def test_a_script_moves_and_runs() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3))
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):  # since 2.15 it is the latter
            warnings.simplefilter("ignore", kind)
        script = torch.jit.script(model)
    x = torch.rand(4, 2)
    expected = script(x)
    script.to("xla")
    assert {p.device.type for p in (*script.parameters(), *script.buffers())} == {"xla"}
    script.eval()
    model.eval()
    torch.testing.assert_close(script(x.to("xla")).cpu(), script.cpu()(x))
    assert expected.device.type == "cpu"
