"""The tour: what `torch_xla` does, in a dozen tests of plain PyTorch. Read it first; it takes seconds."""

import io
import warnings

import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.pending import prolonged


def test_a_tensor_lives_on_the_device_like_on_any_other() -> None:
    x = torch.ones(2, 3, device="xla")
    y = x.to("xla:0") @ x.t() + torch.eye(2, device="xla")
    assert y.device == torch.device("xla:0")
    assert y.cpu().tolist() == [[4, 3], [3, 4]]


def test_operations_are_recorded_and_run_at_the_sync() -> None:
    torch_xla.sync()
    x = torch.arange(3.0, device="xla") * 2
    assert torch_xla._XLAC._check_tensor_need_materialization([x]) == [True]
    torch_xla.sync()
    assert torch_xla._XLAC._check_tensor_need_materialization([x]) == [False]


def test_reading_a_value_runs_what_it_needs_and_little_else() -> None:
    torch_xla.sync()
    met.clear_all()
    needed, other = torch.ones(3, device="xla").exp(), prolonged(torch.ones(3, device="xla").sin())
    assert round(needed.sum().item(), 3) == 8.155
    assert met.counter_value("xla::exp") == 1
    assert torch_xla._XLAC._check_tensor_need_materialization([other]) == [True]


def test_a_view_is_a_window_on_the_same_memory() -> None:
    x = torch.zeros(3, 4, device="xla")
    x.t()[1:3, ::2] += 1
    x.view(-1)[-1] = 7
    assert x.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 7]]


def test_a_model_learns_what_it_learns_on_the_cpu() -> None:
    def losses(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        x = torch.linspace(-1, 1, 24).view(6, 4).to(device)
        seen = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            seen.append(loss.detach())
        return torch.stack(seen).cpu()

    torch.testing.assert_close(losses("xla"), losses("cpu"))


def test_the_same_step_is_compiled_once_even_if_its_numbers_change() -> None:
    x = torch.ones(1237, device="xla")  # of a size that no other test has, so that its program is not known
    torch_xla.sync()
    met.clear_all()
    for step in range(100):
        y = x * (0.1 / (step + 1))
        torch_xla.sync()
    assert met.counter_value("UncachedCompile") <= 2  # the number is baked in, then becomes an argument
    torch.testing.assert_close(y.cpu(), torch.full((1237,), 0.001))


def test_moving_a_model_keeps_its_parameters_and_its_ties() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = weight = model["embedding"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("xla")
    assert model["head"].weight is model["embedding"].weight is weight
    model["embedding"](torch.tensor([1], device="xla")).sum().backward()
    with torch.no_grad():
        weight.fill_(1)
    optimizer.step()
    assert model["head"].weight.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]


def test_autograd_works_to_any_depth() -> None:
    x = torch.tensor(3.0, device="xla", requires_grad=True)
    (first,) = torch.autograd.grad(x**4, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x, create_graph=True)
    second.backward()
    assert x.grad is not None
    assert [v.item() for v in (first, second, x.grad)] == [108, 108, 72]


def test_random_numbers_follow_the_seed_and_never_recompile() -> None:
    torch.manual_seed(7)
    first = torch.rand(3, device="xla").cpu()
    met.clear_all()
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)
    assert not torch.equal(torch.rand(3, device="xla").cpu(), first)
    assert met.counter_value("UncachedCompile") is None


def test_mistakes_raise_what_they_raise_on_the_cpu() -> None:
    def message(device: str) -> str:
        try:
            torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
        except RuntimeError as error:
            return str(error)
        return "accepted"

    assert message("xla") == message("cpu")
    assert message("xla").endswith("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")


def test_an_operator_without_a_rule_runs_on_the_host_and_says_so() -> None:
    met.clear_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points, edges = torch.tensor([[3.0], [1.0], [3.0]], device="xla"), torch.tensor([0.0, 2.0, 4.0], device="xla")
        assert torch.histogramdd(points, (edges,)).hist.tolist() == [1, 2]
    assert met.executed_fallback_ops() == ["aten::_histogramdd_from_bin_tensors"]


def test_tensors_are_saved_and_loaded_with_their_device() -> None:
    file = io.BytesIO()
    torch.save(nn.Linear(2, 2).to("xla").state_dict(), file)
    for target in ("cpu", "xla"):
        file.seek(0)
        loaded = torch.load(file, map_location=target)
        assert {tensor.device.type for tensor in loaded.values()} == {target}
