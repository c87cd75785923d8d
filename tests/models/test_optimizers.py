"""Every optimizer of `torch.optim`, in all its forms, takes the CPU's path."""

from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met

READ = "aten::_local_scalar_dense"  # what `.item()` calls

STEPS = 6

FORMS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": True, "capturable": True},
}

# name → arguments, and the forms it has.
OPTIMIZERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "SGD": ({"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, ("loop", "foreach", "fused")),
    "Adam": ({"lr": 0.01, "amsgrad": True}, ("loop", "foreach", "fused", "capturable")),
    "AdamW": ({"lr": 0.01}, ("loop", "foreach", "fused", "capturable")),
    "Adagrad": ({"lr": 0.1}, ("loop", "foreach")),
    "Adadelta": ({}, ("loop", "foreach", "capturable")),
    "Adamax": ({}, ("loop", "foreach", "capturable")),
    "ASGD": ({"lr": 0.05}, ("loop", "foreach", "capturable")),
    "NAdam": ({"lr": 0.01}, ("loop", "foreach", "capturable")),
    "RAdam": ({"lr": 0.01}, ("loop", "foreach", "capturable")),
    "RMSprop": ({"lr": 0.01, "momentum": 0.5, "centered": True}, ("loop", "foreach", "capturable")),
    "Rprop": ({"lr": 0.01}, ("loop", "foreach", "capturable")),
}

CASES = [(name, form) for name, (_, forms) in OPTIMIZERS.items() for form in forms]


def path(name: str, form: dict[str, Any], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    x = torch.randn(5, 3, device="cpu").to(device)
    arguments, _ = OPTIMIZERS[name]
    optimizer = getattr(torch.optim, name)(model.parameters(), **{**arguments, **form})
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(("name", "form"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_optimizer_takes_the_path_of_the_cpu(name: str, form: str) -> None:
    # The CPU has no capturable form; it means the same arithmetic.
    on_cpu = {"foreach": False} if form == "capturable" else FORMS[form]
    expected = path(name, on_cpu, "cpu")
    met.clear_all()
    for ours, theirs in zip(path(name, FORMS[form], "xla"), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
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
