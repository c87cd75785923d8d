"""Calls have plans: the same plan for equal calls, another plan for any difference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.lowering.machinery import registry


def test_what_one_number_leaves_as_it_is_another_one_changes() -> None:
    x, y = torch.tensor([4.0, 9.0], device="xla"), torch.tensor([4.0, 9.0], device="xla")
    assert x.pow_(1.0).tolist() == [4, 9]
    assert y.pow_(0.5).tolist() == [2, 3]


def test_subnormal_numbers_count_among_numbers_that_vary() -> None:
    x = torch.tensor([1e10, -3e38], device="xla")
    for number in (0.5, 0.25, 0.125, 1e-39, -1e-39, 2.5, 1e-39, 1e-46):
        outcomes = [(x * number).tolist(), x.clone().mul_(number).tolist(), torch.add(x * 0, x, alpha=number).tolist()]
        assert outcomes == [pytest.approx((x.cpu() * number).tolist())] * 3, number


def test_a_dtype_that_no_device_has_is_refused_where_it_would_arise() -> None:
    with pytest.raises(RuntimeError, match="torch.uint4 has no counterpart"):
        torch.zeros_like(torch.ones(2, device="xla"), dtype=torch.uint4)
    torch_xla.sync()


def test_an_error_of_a_rule_tells_the_operation_and_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> Any:
        raise ValueError("this rule is broken")

    rule = registry.rule_of(torch.ops.aten.erf.default)
    assert rule is not None
    monkeypatch.setitem(registry._rules, rule.op, registry.replace(rule, lower=broken))
    result = torch.zeros(37, device="xla").erf()
    with pytest.raises(ValueError, match="this rule is broken") as caught:
        result.cpu()
    note = next(
        note for note in caught.value.__notes__ if note.startswith("Raised by the rule of ")
    )  # JAX adds its own
    assert note.startswith("Raised by the rule of aten::erf of (f32[37]), recorded by ") and __file__ in note


def ones(device: str, count: int = 3) -> torch.Tensor:
    return torch.ones(count, device=device)


def scores(device: str) -> torch.Tensor:
    return torch.ones(3, 2, device=device, requires_grad=True)


# By a device and an index, all ones, of some dtype.
PLACED: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda d, mask: ones(d).masked_fill(mask, 2.0),
    "masked_fill_": lambda d, mask: ones(d).masked_fill_(mask, 2.0),
    "index_select": lambda d, index: ones(d).index_select(0, index),
    "index_add": lambda d, index: ones(d).index_add(0, index, ones(d)),
    "index_copy": lambda d, index: ones(d).index_copy(0, index[:1], ones(d, 1)),
    "index_fill": lambda d, index: ones(d).index_fill(0, index, 2.0),
    "put": lambda d, index: ones(d).put(index[:1], ones(d, 1)),
    "nll_loss": lambda d, target: torch.nn.functional.nll_loss(scores(d), target),
    "cross_entropy": lambda d, target: torch.nn.functional.cross_entropy(scores(d), target, ignore_index=-100),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PLACED)
def test_what_says_where_elements_are_has_a_dtype_that_the_cpu_takes(name: str, dtype: torch.dtype) -> None:
    outcomes = []
    for device in ("cpu", "xla"):
        try:
            result = PLACED[name](device, ones(device).to(dtype))
            if result.requires_grad:
                result.backward()
            outcomes.append([round(each, 5) for each in result.detach().flatten().tolist()])
        except Exception as error:
            outcomes.append(type(error))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]
