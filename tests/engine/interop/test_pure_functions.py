"""Functions that Python runs once for each kind of arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from torch_xla.experimental.assume_pure import PureModule, assume_pure


def test_a_pure_function_runs_once_for_each_kind_of_arguments() -> None:
    calls: list[tuple[int, ...]] = []

    @assume_pure
    def function(x: Tensor, weights: dict[str, Tensor], scale: float = 1.0) -> dict[str, Any]:
        calls.append(tuple(x.shape))
        return {"out": nn.functional.gelu(x @ weights["w"]) * scale, "rows": x.shape[0]}

    torch.manual_seed(0)
    w = torch.randn(3, 2)
    for rows in (2, 2, 5, 2):
        x = torch.linspace(-1, 1, rows * 3).reshape(rows, 3)
        ours_x, ours_w = x.to("xla").requires_grad_(), w.to("xla").requires_grad_()
        theirs_x, theirs_w = x.clone().requires_grad_(), w.clone().requires_grad_()
        found = function(ours_x, {"w": ours_w}, scale=2.0)
        expected = nn.functional.gelu(theirs_x @ theirs_w) * 2.0
        assert found["rows"] == rows
        found["out"].pow(2).sum().backward()
        expected.pow(2).sum().backward()
        torch.testing.assert_close(found["out"].cpu(), expected)
        torch.testing.assert_close(ours_x.grad.cpu(), theirs_x.grad)  # type: ignore[union-attr]
        torch.testing.assert_close(ours_w.grad.cpu(), theirs_w.grad)  # type: ignore[union-attr]
    assert calls == [(2, 3), (5, 3)]
    function(ours_x, {"w": ours_w}, scale=3.0)
    function(ours_x, {"w": ours_w}, scale=3.0)
    assert calls == [(2, 3), (5, 3), (2, 3)]


def test_a_seed_decides_the_random_numbers_of_a_pure_function() -> None:
    @assume_pure(add_rng_seed_argument=True)
    def noise(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    x = torch.zeros(4, device="xla")
    torch_xla.manual_seed(5)
    before = torch.rand(2, device="xla").tolist()
    first, again, other = (noise(x, rng_seed=seed).tolist() for seed in (3, 3, 4))
    assert first == again != other
    torch_xla.manual_seed(5)
    assert torch.rand(2, device="xla").tolist() == before
    fresh = assume_pure(lambda x: torch.rand_like(x))
    assert fresh(x).tolist() != fresh(x).tolist()


def test_a_pure_module_trains_like_the_module() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))
    pure = PureModule(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1)))
    pure.module.load_state_dict(plain.state_dict())
    pure.to("xla")
    for model, device in ((plain, "cpu"), (pure, "xla")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.zero_grad()
            model(torch.linspace(0, 1, 6).reshape(2, 3).to(device)).pow(2).sum().backward()
            optimizer.step()
    for theirs, ours in zip(plain.parameters(), pure.module.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_a_number_of_another_type_or_sign_is_another_kind() -> None:
    divide = assume_pure(lambda x, n: x / n)
    x = torch.ones(1).to("xla")
    assert [divide(x, n).item() for n in (0.0, -0.0, 2, 2.0)] == [float("inf"), -float("inf"), 0.5, 0.5]
    scale = assume_pure(lambda x, n: x * n)
    whole = torch.ones(1, dtype=torch.int32).to("xla")
    assert [scale(whole, n).dtype for n in (1, 1.0, True)] == [torch.int32, torch.float32, torch.int32]
    with pytest.raises(TypeError, match="takes tensors and hashable values; got a set"):
        scale(x, {1})
