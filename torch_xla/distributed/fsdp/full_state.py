"""The whole state of a divided model and its optimizer, for checkpoints that any number of processes can load.

All processes must call these functions together. For models that are too large for one process, use
`get_shard_metadata` and `consolidate_sharded_model_checkpoints`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from ..._engine import distributed
from ..._engine.distributed import ShardedUnit
from ..._engine.distributed import UnitHandle as Handle
from .xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel, clean_name


def full_state(model: XlaFullyShardedDataParallel, optimizer: Optimizer | None = None) -> dict[str, object]:
    """Return whole parameters and buffers by their names in the module without wrappers, and the state of an optimizer.

    Returns `{"model": state_dict, "optimizer": {"states": by name, "param_groups": ...}}` on the CPU, in every process.
    Parameters are gathered one after the other.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    >>> state = full_state(FSDP(torch.nn.Linear(3, 2)))
    >>> {name: tuple(tensor.shape) for name, tensor in state["model"].items()}
    {'weight': (2, 3), 'bias': (2,)}
    """
    whole: dict[str, torch.Tensor] = {}
    states: dict[str, dict[str, Any]] = {}
    for prefix, unit, handle in _handles(model):
        _spread(prefix, handle, _whole(unit, handle, handle.shard.detach()), whole.__setitem__)
        if optimizer is None:
            continue
        for key, value in optimizer.state.get(handle.shard, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == handle.shard.shape:
                put = _into(states, key)
                _spread(prefix, handle, _whole(unit, handle, value), put)
            else:
                kept = value.cpu() if isinstance(value, torch.Tensor) else value
                for name in _names(prefix, handle):
                    states.setdefault(name, {})[key] = kept
    for name, buffer in model.named_buffers():
        whole[clean_name(name)] = buffer.cpu()
    if optimizer is None:
        return {"model": whole}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"model": whole, "optimizer": {"states": states, "param_groups": groups}}


@torch.no_grad()
def load_full_state(
    model: XlaFullyShardedDataParallel, state: dict[str, Any], optimizer: Optimizer | None = None
) -> None:
    """Load the result of `full_state`, from any number of processes, into a divided model and its optimizer.

    Raises `KeyError` if a parameter of the model is not in `state`.
    """
    for prefix, unit, handle in _handles(model):
        handle.shard.copy_(_part(prefix, unit, handle, state["model"].__getitem__))
        if optimizer is not None:
            optimizer.state[handle.shard] = _states_of(prefix, unit, handle, state["optimizer"]["states"])
    for name, buffer in model.named_buffers():
        buffer.copy_(state["model"][clean_name(name)])
    if optimizer is not None:
        for group, saved in zip(optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            group.update(saved)


def _states_of(prefix: str, unit: ShardedUnit, handle: Handle, states: dict[str, dict[str, Any]]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for key, value in states.get(_names(prefix, handle)[0], {}).items():
        if isinstance(value, torch.Tensor) and value.dim():
            own[key] = _part(prefix, unit, handle, partial(_state, states, key)).to(handle.shard.device)
        else:
            # A count of steps: each parameter advances its own.
            own[key] = value.clone() if isinstance(value, torch.Tensor) else value
    return own


def _state(states: dict[str, dict[str, Any]], key: str, name: str) -> torch.Tensor:
    found: torch.Tensor = states[name][key]
    return found


def _handles(model: XlaFullyShardedDataParallel) -> list[tuple[str, ShardedUnit, Handle]]:
    return [(prefix, each._unit, handle) for prefix, each in model._named_units() for handle in each._unit.handles]


def _names(prefix: str, handle: Handle) -> list[str]:
    dotted = f"{prefix}." if prefix else ""
    return [clean_name(dotted + name) for piece in handle.pieces for name in piece.names]


def _whole(unit: ShardedUnit, handle: Handle, part: torch.Tensor) -> torch.Tensor:
    exchange = unit.exchange
    return handle.layout.whole(distributed.gather_shards([part], exchange.count, exchange.groups)[0]).cpu()


def _spread(prefix: str, handle: Handle, whole: torch.Tensor, put: Callable[[str, torch.Tensor], None]) -> None:
    dotted, flat = f"{prefix}." if prefix else "", whole.reshape(-1)
    for piece in handle.pieces:
        tensor = flat[piece.offset : piece.offset + piece.size.numel()].reshape(piece.size).clone()
        for name in piece.names:
            put(clean_name(dotted + name), tensor)


def _into(states: dict[str, dict[str, Any]], key: str) -> Callable[[str, torch.Tensor], None]:
    return lambda name, tensor: states.setdefault(name, {}).__setitem__(key, tensor)


def _part(prefix: str, unit: ShardedUnit, handle: Handle, of: Callable[[str], torch.Tensor]) -> torch.Tensor:
    dotted = f"{prefix}." if prefix else ""
    whole = torch.cat([of(clean_name(dotted + piece.names[0])).reshape(-1) for piece in handle.pieces])
    return handle.layout.shard(whole.reshape(handle.layout.size), unit.exchange.place)
