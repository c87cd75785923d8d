"""Fractions in a tensor are looked at, as on the CPU, where they are known; the quantiles are the CPU's."""

import pytest
import torch

from torch_xla._engine.compat.names import torch as private

X = torch.tensor([[3.0, 1.0, 2.0, 5.0], [float("nan"), 4.0, 0.0, 1.0]])


@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile], ids=["quantile", "nanquantile"])
@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_they_are_those_of_the_cpu(function: object, interpolation: str) -> None:
    q = torch.tensor([0.0, 0.3, 1.0])
    call = function  # type: ignore[assignment]
    for dim in (None, 1):
        ours = call(X.to("xla"), q.to("xla"), dim, interpolation=interpolation)  # type: ignore[operator]
        theirs = call(X, q, dim, interpolation=interpolation)  # type: ignore[operator]
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize("has_out", [False, True], ids=["new", "out"])
def test_a_fraction_that_is_none_is_refused_as_on_the_cpu(fraction: float, has_out: bool) -> None:
    told = []
    for device in ("cpu", "xla"):
        x, q = X.to(device), torch.tensor([0.5, fraction]).to(device)
        options = {"out": torch.empty(0, device=device)} if has_out else {}
        with pytest.raises(RuntimeError) as refusal:
            torch.quantile(x, q, 1, **options)
        told.append(str(refusal.value).partition("\n")[0])
    assert told[0] == told[1]


def test_what_the_device_computed_is_not_waited_for() -> None:
    q = torch.tensor([0.5]).to("xla") * 1
    found = torch.quantile(X.to("xla"), q, 1)
    assert q.untyped_storage().value.buffer is None and found.shape == (1, 2)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # on the CPU as well
def test_transforms_are_left_alone() -> None:
    x, q = X[:1].to("xla"), torch.tensor([0.5]).to("xla")
    ours = torch.func.vmap(lambda row: torch.quantile(row, q))(x)
    assert ours.tolist() == torch.quantile(X[:1], torch.tensor([0.5]), 1).t().tolist()
    assert not private.calls_are_watched()
