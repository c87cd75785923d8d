"""Many runs over four virtual CPU devices at once: each function is a part of
tests/engine/runtime/test_launch_throttle.py.
"""

import os

import numpy as np
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla._engine.runtime import launch_throttle

xr.use_spmd()

LINE = xs.Mesh(np.arange(4), (4,), ("rows",))


def _divided(*size: int) -> torch.Tensor:
    x = torch.full(size, 1e-2).to("xla")
    xs.mark_sharding(x, LINE, ("rows", None))
    return x


def as_many_programs_as_nobody_waits_for_end() -> None:
    x, weight = _divided(256, 256), torch.full((256, 256), 1e-3).to("xla")
    for _ in range(8):
        for _ in range(30):
            x = torch.tanh(x @ weight)
            torch_xla.sync()
            weight = weight + 1e-6 * (x.t() @ x)  # reduced over all devices
            torch_xla.sync()
        torch_xla.sync(wait=True)
    assert met.metric_data("ExecuteTime")[0] > 2 * launch_throttle.MOST  # type: ignore[index]
    assert torch.isfinite(weight).all()


def a_program_of_many_stages_ends() -> None:
    os.environ["XLA_STAGE_OPERATIONS"] = "1"
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(24)]).to("xla")
    for parameter in layers.parameters():
        if parameter.dim() == 2:
            xs.mark_sharding(parameter, LINE, ("rows", None))
    x, optimizer = _divided(256, 256), torch.optim.SGD(layers.parameters(), lr=1e-2, foreach=False)
    for _ in range(5):
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    assert met.counter_value("StagedProgram") and torch.isfinite(layers(x)).all()


if __name__ == "__main__":
    parts.run_all(globals())
