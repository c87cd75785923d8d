"""Prepare an optimizer for loading a checkpoint."""

import torch

from ..._engine import sharding as _sharding
from ..._engine.step import sync_device
from ..._engine.tensor import value_of


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Create the state of an optimizer, as its first step would, so that a checkpoint can be loaded into it.

    Parameters, gradients and step counts do not change; the state has the sharding of the parameters. Returns the
    optimizer.

    >>> import torch
    >>> from torch_xla.experimental.distributed_checkpoint import prime_optimizer
    >>> w = torch.nn.Parameter(torch.ones(2, device="xla"))
    >>> sorted(prime_optimizer(torch.optim.Adam([w])).state[w]), w.tolist()
    (['exp_avg', 'exp_avg_sq', 'step'], [1.0, 1.0])
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    before = [(p.detach().clone(), p.grad) for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    with torch.no_grad():
        for p, (value, grad) in zip(parameters, before, strict=True):
            p.copy_(value)
            p.grad = grad
            _begin_again(optimizer.state[p])
            _lie_as(p, optimizer.state[p])
    for device in {value_of(p).device for p in parameters if p.device.type == "xla"}:
        sync_device(device)
    return optimizer


def _lie_as(parameter: torch.Tensor, state: dict[str, object]) -> None:
    """Give the state the sharding of its parameter.

    The sharding must be set, because the state was computed from the parameter before it was written back.
    """
    sharding = _sharding.planned_sharding(parameter) if parameter.device.type == "xla" else None
    for each in state.values() if sharding is not None else ():
        if isinstance(each, torch.Tensor) and each.device == parameter.device and each.shape == parameter.shape:
            _sharding.place_by_sharding(each, sharding)


def _begin_again(state: dict[str, object]) -> None:
    step = state.get("step")
    if isinstance(step, torch.Tensor):
        step.zero_()
    elif step is not None:
        state["step"] = 0
