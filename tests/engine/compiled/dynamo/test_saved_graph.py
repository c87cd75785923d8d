"""`torch.compile(f).aot_compile(...)`: compile ahead of the first call, save, and load in another process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla.experimental import eager_mode

WAYS: dict[str, dict[str, Any]] = {"openxla": {"backend": "openxla"}, "default": {}}
LOADING = """
import sys, torch, torch_xla
for way in ("openxla", "default"):
    with open(f"{sys.argv[1]}/{way}", "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    for rows in (4, 6):
        x = torch.arange(rows * 3.0, device="xla").reshape(rows, 3).requires_grad_()
        y = torch.ones(3, 2, device="xla")
        loaded(x, y).sum().backward()
        print(loaded(x, y).tolist(), x.grad.tolist())
"""


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ y) * 2


def inputs(device: str, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(rows * 3.0, device=device).reshape(rows, 3).requires_grad_()
    return x, torch.ones(3, 2, device=device)


def expected(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = inputs("cpu", rows)
    result = scaled(x, y)
    result.sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    """PyTorch 2.11 gives a compiled function `aot_compile` only when a switch is set."""
    with torch._dynamo.config.patch(enable_aot_compile=True):
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_eager", [False, True])
def test_compiled_ahead_it_computes_and_differentiates_as_the_cpu(way: str, is_eager: bool) -> None:
    compiled = torch.compile(scaled, fullgraph=True, **WAYS[way]).aot_compile((inputs("xla"), {}))
    eager_mode(is_eager)
    try:
        x, y = inputs("xla")
        result = compiled(x, y)
        result.sum().backward()
    finally:
        eager_mode(False)
    torch.testing.assert_close((result.cpu(), x.grad.cpu()), expected(4))  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        compiled(*inputs("xla", 5))  # of another size than it was compiled for


def test_another_process_loads_it_and_takes_other_sizes(tmp_path: Path) -> None:
    for way, options in WAYS.items():
        compiled = torch.compile(scaled, fullgraph=True, dynamic=True, **options).aot_compile((inputs("xla"), {}))
        compiled.save_compiled_function(str(tmp_path / way))
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line, rows in zip(lines, (4, 6, 4, 6), strict=True):
        result, gradient = (torch.tensor(each) for each in eval(f"[{line.replace('] [', '], [')}]"))
        torch.testing.assert_close((result, gradient), expected(rows))


def test_a_module_is_saved_without_its_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).to("xla")
    x = torch.ones(5, 3, device="xla")
    compiled = torch.compile(model, fullgraph=True).forward.aot_compile(((x,), {}))
    outside = {"model": model}
    compiled.save_compiled_function(str(tmp_path / "model"), external_data=outside)
    with (tmp_path / "model").open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file, external_data=outside)
    torch.testing.assert_close(loaded(x).cpu(), model.cpu()(x.cpu()))


def test_what_is_compiled_as_usual_keeps_nothing_to_save() -> None:
    compiled = torch.compile(scaled, backend="openxla", dynamic=True)
    for rows in (4, 6):
        x, y = inputs("xla", rows)
        torch.testing.assert_close(compiled(x, y).detach().cpu(), expected(rows)[0])
    torch_xla.sync()
