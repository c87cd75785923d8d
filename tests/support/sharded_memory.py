"""The peak memory of four virtual devices: the parts of tests/api/distributed/test_sharded_training.py."""

import os

import numpy as np
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

xr.use_spmd()

LINE = xs.Mesh(np.arange(4), (4,), ("fsdp",))


def _bytes(tensor: torch.Tensor) -> list[int]:
    buffer = tensor.untyped_storage().value.buffer  # type: ignore[attr-defined]
    return [shard.data.nbytes for shard in buffer.addressable_shards]


def _layers(**options: bool) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    inside = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8)]).to("xla")
    model = SpmdFullyShardedDataParallel(inside, LINE, **options)  # type: ignore[arg-type]
    x = torch.ones(4, 512).to("xla")
    xs.mark_sharding(x, LINE, ("fsdp", None))
    return model, torch.optim.AdamW(model.parameters()), x


def what_was_gathered_for_the_forward_pass_is_gathered_again() -> None:
    gradients, peaks = [], []
    for again in (True, False):
        model, _, x = _layers(reshard_after_forward=again)
        os.environ["XLA_STAGE_OPERATIONS"] = "0"

        def step(model: nn.Module = model, x: torch.Tensor = x) -> None:
            model(x).square().mean().backward()

        peaks.append(torch_xla.debug.plan(step, steps=1).programs[0].sizes.intermediate)
        step()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
    assert peaks[0] < 0.7 * peaks[1], peaks
    loss = model(x).sum()
    loss.backward()
    model, _, x = _layers()
    loss = model(x).sum()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        raise AssertionError("not refused")


def a_program_in_stages_is_planned_as_it_lies() -> None:
    os.environ["XLA_STAGE_OPERATIONS"] = "4"
    model, optimizer, x = _layers()

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = torch_xla.debug.plan(step, steps=2)
    assert met.counter_value("StagedProgram")
    own = sum(_bytes(parameter)[0] for parameter in model.parameters())
    for program in plan.programs:
        assert (program.held.parameters, program.held.state) == (own, 2 * own), program.held
        waiting = {each.shape for each in program.largest if each.name == "aten::linear_backward"}
        assert "float32[128, 512]" in waiting and "float32[512, 512]" not in waiting, waiting  # what one device has
    assert plan.programs[1].sizes.inputs < 1.1 * 3 * own + _bytes(x)[0]
    os.environ["XLA_STAGE_OPERATIONS"] = "0"


if __name__ == "__main__":
    parts.run_all(globals())
