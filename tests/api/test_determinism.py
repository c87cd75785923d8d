"""The same program, inputs and seed give the same bits (docs/determinism.md)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla
from torch_xla._engine.step.schedule import clear_schedules

PROGRAM = """
import hashlib, torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
model = torch.nn.Sequential(*layers).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(5):
    loss = model(torch.randn(8, 16, device="xla")).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.cpu().numpy().tobytes())
print(found.hexdigest(), counters.value_of("PersistentCacheHit") or 0)
"""


@pytest.mark.slow
def test_processes_with_a_cold_a_warm_and_no_cache_give_the_same_bits(tmp_path: Path) -> None:
    places = [str(tmp_path / "cache"), str(tmp_path / "cache"), ""]
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": place},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        ).stdout.split()
        for place in places
    ]
    assert len({bits for bits, _ in runs}) == 1
    hits = [int(each) for _, each in runs]
    assert hits[0] == hits[2] == 0 < hits[1]


def trained(
    seed: int, steps: int, start: dict[str, object] | None = None
) -> tuple[list[torch.Tensor], dict[str, object]]:
    """Train for some steps from a seed or a checkpoint; return the parameters and a checkpoint."""
    clear_schedules()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Dropout(0.5), torch.nn.Linear(12, 2)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if start is not None:
        model.load_state_dict(start["model"])  # type: ignore[arg-type]
        optimizer.load_state_dict(start["optimizer"])  # type: ignore[arg-type]
        torch.xla.set_rng_state(start["generator"])  # type: ignore[arg-type]
    for _ in range(steps):
        loss = model(torch.rand(4, 6, device="xla")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    values = [value.cpu() for value in model.state_dict().values()]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.xla.get_rng_state()}
    return values, state


def test_a_seed_and_a_restart_give_the_same_bits() -> None:
    (first, _), (again, _), (other, _) = trained(0, 4), trained(0, 4), trained(1, 4)
    assert all(map(torch.equal, first, again)) and not all(map(torch.equal, first, other))
    _, half = trained(0, 2)
    assert all(map(torch.equal, first, trained(7, 2, half)[0]))
