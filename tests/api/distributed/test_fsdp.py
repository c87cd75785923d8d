"""`XlaFullyShardedDataParallel` trains as one process does, holds a part, and its checkpoints become one again."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from benchmarks import sharded_memory
from tests.support.fleet import fleet_of
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
    full_state,
    load_full_state,
)
from torch_xla.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

FSDP = XlaFullyShardedDataParallel
COUNT = 2


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


class Network(nn.Module):
    """Tied weights, a buffer, and a parameter that is not trained."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)
        self.register_buffer("shift", torch.linspace(0, 1, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scale + self.shift
        for block in self.blocks:
            x = block(x)
        return self.head(x)


OPTIONS: dict[str, dict[str, Any]] = {
    "nested": {"auto_wrap_policy": partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})},
    "one unit": {},
    "kept": {
        "auto_wrap_policy": partial(size_based_auto_wrap_policy, min_num_params=500), "reshard_after_forward": False,
        "shard_param_on_dim_0": True,
    },
    "flat": {
        "auto_wrap_policy": partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        "flatten_parameters": True, "disable_reshard_on_root": False, "_shard_size_multiple": 1,
    },
    "checkpointed": {
        "auto_wrap_policy": partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        "auto_wrapper_callable": lambda module, **kwargs: FSDP(checkpoint_module(module), **kwargs),
        "coalesce_all_gather_ops": True, "reduce_scatter_bucket_size_mb": 1, "disable_reshard_on_root": False,
    },
    "loose": {
        "auto_wrap_policy": partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        "optimization_barrier_in_forward": False, "optimization_barrier_in_backward": False,
        "sync_on_finalization": True,
    },
}  # fmt: skip


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(np.random.default_rng(step).integers(0, 10, (COUNT, 2, 5)))
    return tokens, (tokens * 3 + 1) % 10


def train(model: nn.Module, place: int | None, steps: int = 3, clip: float = 0.5) -> list[Any]:
    """Losses and norms; of one process `place` is `None`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    found = []
    executions = 0
    for step in range(steps):
        tokens, targets = ((each.reshape(-1, 5) if place is None else each[place].to("xla")) for each in batch(step))
        before = met.counter_value("ExecuteComputation") or 0
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = model.clip_grad_norm_(clip) if place is not None else nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if place is not None:
            torch_xla.sync()
            executions = (met.counter_value("ExecuteComputation") or 0) - before
        found.append((loss.detach(), norm))
    return [[(loss.item(), norm.item()) for loss, norm in found], executions]


def train_sharded(name: str, folder: str) -> Any:
    model = FSDP(Network(), **OPTIONS[name])
    held = sum(parameter.numel() for parameter in model.parameters())
    found = train(model, xr.global_ordinal())
    checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(checkpoint, f"{folder}/{name}_rank-{xr.global_ordinal()}-of-{xr.world_size()}.pth", master_only=False)
    units = sum(isinstance(each, FSDP) for each in model.modules())
    # Every run of the tests does only a short part; the slow runs check this, too.
    return found, held, units, None if name == "nested" else goes_on(model, name)


def goes_on(model: nn.Module, name: str) -> bool:
    """Whether a model divided in another way trains the same from the whole state of this one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    other = FSDP(Network(), **OPTIONS["nested"])
    of_other = torch.optim.AdamW(other.parameters(), lr=0.5)
    losses = []
    for step in range(3):
        if step == 1:
            load_full_state(other, full_state(model, optimizer), of_other)
        for each, stepped in ((model, optimizer), (other, of_other)):
            tokens, targets = (part[xr.global_ordinal()].to("xla") for part in batch(step))
            loss = nn.functional.cross_entropy(each(tokens).flatten(0, 1), targets.flatten())
            stepped.zero_grad()
            loss.backward()
            stepped.step()
            losses.append(loss.detach())
            torch_xla.sync()
    one, two = [each.item() for each in losses[2::2]], [each.item() for each in losses[3::2]]
    return one == pytest.approx(two, rel=1e-5) and losses[0].item() != pytest.approx(losses[1].item(), rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_it_trains_as_one_process_and_its_checkpoints_become_the_model(name: str, tmp_path: Path) -> None:
    alone = Network()
    expected, _ = train(alone, None)
    found = fleet_of(COUNT).run(train_sharded, name, str(tmp_path), seconds=300)
    losses = np.mean([[loss for loss, _ in steps] for (steps, _), *_ in found], axis=0)
    np.testing.assert_allclose(losses, [loss for loss, _ in expected], rtol=1e-5)
    for (steps, executions), held, units, is_same in found:
        assert is_same is (None if name == "nested" else True)
        np.testing.assert_allclose([norm for _, norm in steps], [norm for _, norm in expected], rtol=1e-4)
        assert executions == (2 if OPTIONS[name].get("sync_on_finalization") else 1)
        assert units == (1 if name == "one unit" else 3)
        if name == "flat":
            assert held <= sum(parameter.numel() for parameter in alone.parameters()) / COUNT + 4 * units
    whole, path = consolidate_sharded_model_checkpoints(f"{tmp_path}/{name}", "_rank-*-of-*.pth")
    assert path is not None and set(torch.load(path)["model"]) == set(alone.state_dict())
    for key, tensor in alone.state_dict().items():
        torch.testing.assert_close(whole[key], tensor, rtol=1e-4, atol=1e-5)
    if name == "nested":
        command = [sys.executable, "-m", "torch_xla.distributed.fsdp.consolidate_sharded_ckpts"]
        command += ["--ckpt_prefix", f"{tmp_path}/{name}", "--ckpt_suffix", "_rank-*-of-*.pth"]
        said = subprocess.run([*command, "--save_path", f"{tmp_path}/whole.pth"], capture_output=True, text=True)
        assert said.stdout.startswith(f"{tmp_path}/whole.pth: {len(whole)} tensors"), said.stderr
        Network().load_state_dict(torch.load(tmp_path / "whole.pth")["model"])


def memory(width: int, layers: int) -> list[tuple[float, float]]:
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    makers = (sharded_memory.replicated, sharded_memory.divided)
    return [sharded_memory.measure(make, width, layers) for make in makers]


def test_checkpoints_of_pytorch_xla_2_are_told(tmp_path: Path) -> None:
    torch.save({"model": {}, "shard_metadata": {"shard_info": {}, "world_size": 1, "rank": 0}}, tmp_path / "old_0.pth")
    with pytest.raises(ValueError, match=r"old_0.pth was not written by.*\['rank', .*PyTorch/XLA 2 there"):
        consolidate_sharded_model_checkpoints(f"{tmp_path}/old", "_*.pth")


@pytest.mark.slow
def test_four_processes_hold_a_quarter_each_and_never_all_parameters_at_once() -> None:
    parameters = sum(each.numel() for each in sharded_memory.network(192, 4).parameters()) * 4 / 2**20
    for (all_of_it, _), (held, besides) in fleet_of(4).run(memory, 192, 4, seconds=500):
        assert held <= 0.35 * all_of_it
        assert besides < 0.8 * parameters
