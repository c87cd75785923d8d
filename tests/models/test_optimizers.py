"""Every optimizer of `torch.optim`, in all its forms, takes the CPU's path."""

from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met

READ = "aten::_local_scalar_dense"  # what `.item()` calls

STEPS = 50

FORMS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": True, "capturable": True},
    "capturable loop": {"foreach": False, "capturable": True},
    "fused capturable": {"fused": True, "capturable": True},
    "alone": {},
}

CAPTURABLE = ("loop", "foreach", "capturable", "capturable loop")

# name → arguments, and the forms it has.
OPTIMIZERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "SGD": ({"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, ("loop", "foreach", "fused")),
    "Adam": ({"lr": 0.01, "amsgrad": True}, (*CAPTURABLE, "fused", "fused capturable")),
    "AdamW": ({"lr": 0.01}, (*CAPTURABLE, "fused", "fused capturable")),
    "Adagrad": ({"lr": 0.1}, ("loop", "foreach", "fused")),
    "Adadelta": ({}, CAPTURABLE),
    "Adafactor": ({"lr": 0.05}, ("loop", "foreach")),
    "Adamax": ({}, CAPTURABLE),
    "ASGD": ({"lr": 0.05}, CAPTURABLE),
    "Muon": ({"lr": 0.01}, ("alone",)),
    "NAdam": ({"lr": 0.01}, CAPTURABLE),
    "RAdam": ({"lr": 0.01}, CAPTURABLE),
    "RMSprop": ({"lr": 0.01, "momentum": 0.5, "centered": True}, CAPTURABLE),
    "Rprop": ({"lr": 0.01}, CAPTURABLE),
}

# Relative and absolute. Coarse computations differ by this much on purpose.
TOLERANCE = {
    ("Muon", "alone"): (5e-2, 2e-2),  # orthogonalises in bfloat16
    ("RAdam", "capturable"): (2e-3, 1e-4),  # its corrections, differences of large numbers, are float32 tensors
    ("RAdam", "capturable loop"): (2e-3, 1e-4),
}

CASES = [(name, form) for name, (_, forms) in OPTIMIZERS.items() for form in forms]


def path(name: str, form: dict[str, Any], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    x = torch.randn(5, 3, device="cpu").to(device)
    arguments, _ = OPTIMIZERS[name]
    trained = [p for p in model.parameters() if p.dim() == 2 or name != "Muon"]
    optimizer = getattr(torch.optim, name)(trained, **{**arguments, **form})
    for _ in range(STEPS):
        model.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    ("name", "form"), [pytest.param(*case, marks=[pytest.mark.slow] * case[1].endswith("loop")) for case in CASES]
)
def test_an_optimizer_takes_the_path_of_the_cpu(name: str, form: str) -> None:
    # The CPU has no capturable form; it means the same arithmetic.
    on_cpu = {k: v for k, v in FORMS[form].items() if k != "capturable"}
    expected = path(name, on_cpu, "cpu")
    met.clear_all()
    rtol, atol = TOLERANCE.get((name, form), (1e-4, 1e-5))
    for ours, theirs in zip(path(name, FORMS[form], "xla"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    assert set(met.executed_fallback_ops()) <= {READ}


def test_lbfgs_takes_the_path_of_the_cpu() -> None:
    def path(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 1).to(device)
        x, y = torch.randn(6, 3, device="cpu").to(device), torch.randn(6, 1, device="cpu").to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return model.weight.detach().cpu()

    torch.testing.assert_close(path("xla"), path("cpu"), rtol=1e-4, atol=1e-5)


def test_the_optimizer_of_sparse_gradients_says_that_ours_are_dense() -> None:
    weight = torch.ones(3, 2, device="xla", requires_grad=True)
    optimizer = torch.optim.SparseAdam([weight])
    weight.sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients, please consider Adam instead"):
        optimizer.step()


def test_every_optimizer_is_here() -> None:
    known = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert known - {"Optimizer", "LBFGS", "SparseAdam"} == set(OPTIMIZERS)
