"""Batch norm gives what it gives on the CPU, and writes its running statistics though its schema does not say so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

ATEN = torch.ops.aten
X = torch.arange(24.0).view(4, 3, 2).sin()


def arguments(device: str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    made = {
        "input": X.to(dtype), "weight": torch.tensor([1.0, 2, 3]), "bias": torch.tensor([0.5, 0, -1]),
        "mean": torch.tensor([0.1, 0.2, 0.3]), "var": torch.tensor([1.0, 2, 3]),
    }  # fmt: skip
    return {name: tensor.to(device) for name, tensor in made.items()}


def new(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0)


CALLS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "training": lambda a: ATEN.native_batch_norm(*a.values(), True, 0.1, 1e-5),
    "inference": lambda a: ATEN.native_batch_norm(*a.values(), False, 0.1, 1e-5),
    "inference, functional": lambda a: ATEN._native_batch_norm_legit_functional(*a.values(), False, 0.1, 1e-5),
    "training, functional": lambda a: ATEN._native_batch_norm_legit_functional(*a.values(), True, 0.1, 1e-5),
    "inference by name": lambda a: ATEN._native_batch_norm_legit_no_training(*a.values(), 0.1, 1e-5),
    "no parameters": lambda a: ATEN.native_batch_norm(a["input"], None, None, None, None, True, 0.1, 1e-5),
    "stateful": lambda a: ATEN._native_batch_norm_legit(*a.values(), True, 0.3, 1e-5),
    "update": lambda a: ATEN._batch_norm_with_update(*a.values(), 0.3, 1e-5)[:3],
    "out": lambda a: ATEN.native_batch_norm.out(
        *a.values(), True, 0.1, 1e-5, out=new(a["input"]), save_mean=new(a["mean"]), save_invstd=new(a["mean"])
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_and_running_statistics_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    ours, theirs = arguments("xla", dtype), arguments("cpu", dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    for found, expected in zip(CALLS[name](ours), CALLS[name](theirs), strict=True):
        assert found.dtype is expected.dtype and found.shape == expected.shape
        torch.testing.assert_close(found.cpu(), expected, **tolerance)
    for each in ("mean", "var"):
        torch.testing.assert_close(ours[each].cpu(), theirs[each], **tolerance)
        assert ours[each].dtype is torch.float32


def test_statistics_are_written_where_they_are_seen_through_a_view() -> None:
    for device in ("cpu", "xla"):
        rows = torch.zeros(2, 3, device=device)
        torch.nn.functional.batch_norm(X.to(device), rows[0], rows[1], training=True, momentum=1.0)
        torch.testing.assert_close(rows[0].cpu(), X.mean((0, 2)))
        torch.testing.assert_close(rows[1].cpu(), X.var((0, 2)))


def test_the_gradients_are_those_of_the_cpu() -> None:
    found = []
    for device in ("cpu", "xla"):
        a = arguments(device)
        out, mean, invstd, reserve = ATEN._batch_norm_with_update(*a.values(), 0.1, 1e-5)
        gradients = ATEN.batch_norm_backward(
            out.cos(), a["input"], a["weight"], a["mean"], a["var"], mean, invstd, True, 1e-5, [True] * 3, reserve
        )
        found.append([each.cpu() for each in gradients])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_inference_without_statistics_is_refused() -> None:
    with pytest.raises(RuntimeError, match="running_mean and running_var must be given when training is False"):
        torch.native_batch_norm(X.to("xla"), None, None, None, None, False, 0.1, 1e-5)  # this call crashes the CPU


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("operator", [torch.batch_norm, torch.instance_norm, torch.native_batch_norm])
def test_one_statistic_without_the_other_is_refused(operator: Any, training: bool) -> None:
    for given in ((torch.zeros(3), None), (None, torch.ones(3))):
        errors = []
        for device in ("cpu", "xla"):
            statistics = [None if each is None else each.to(device) for each in given]
            last = () if operator is torch.native_batch_norm else (False,)
            with pytest.raises((ValueError, RuntimeError)) as error:
                operator(X.to(device), None, None, *statistics, training, 0.1, 1e-5, *last)
            errors.append((error.type, str(error.value)))
        assert errors[0] == errors[1]


def test_statistics_of_the_batch_are_for_training_alone() -> None:
    with pytest.raises(RuntimeError, match="running_mean and running_var must be given when training is False"):
        ATEN._native_batch_norm_legit.no_stats(X.to("xla"), None, None, False, 0.1, 1e-5)  # it crashes the CPU


@pytest.mark.parametrize("size", [(4, 3, 2), (4, 3), (), (3,), (0, 3)])
@pytest.mark.parametrize("call", [
    lambda x, mean, var: ATEN._batch_norm_no_update(x, None, None, mean, var, 0.1, 1e-5),
    lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5),
], ids=["no update", "native"])  # fmt: skip
def test_batch_norm_gives_or_refuses_what_the_cpu_does(call: Callable[..., Any], size: tuple[int, ...]) -> None:
    found: list[Any] = []
    for device in ("cpu", "xla"):
        a = arguments(device)
        x = torch.arange(float(torch.Size(size).numel()), device=device).reshape(size)
        try:
            found.append([each.cpu() for each in call(x, a["mean"], a["var"])])
        except (RuntimeError, IndexError, ValueError) as refusal:
            found.append(type(refusal))
    if isinstance(found[0], type):
        assert found[0] is found[1]
    else:
        torch.testing.assert_close(found[1], found[0])
