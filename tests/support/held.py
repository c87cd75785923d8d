"""The memory of other tests' tensors, which a plan counts with everything that the process holds."""

import torch

import torch_xla
from torch_xla._engine.planning.planner import Held
from torch_xla.debug import plan


def held_by_others(devices: int | None = None) -> Held:
    """Return the memory that a plan reports for a program without own tensors."""
    torch_xla.sync()  # what was only recorded would be computed by the planned program
    return plan(lambda: torch.ones(2, device="xla") * 2, steps=1, devices=devices).programs[0].held
