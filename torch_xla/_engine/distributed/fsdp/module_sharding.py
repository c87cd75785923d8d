"""Replace a module's parameters by shards of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...compat.names.torch import parameters_of
from ...processes import identity
from ..collective_arguments import AVERAGED
from .fsdp_unit import Handle, ParameterPiece
from .parameter_shards import ShardLayout

# Set on a parameter that was divided, to report parameters that occur a second time in the model.
_DIVIDED = "_torch_xla_is_divided"
# PyTorch/XLA 2's mark of a shard.
_SHARD = "_is_sharded"


def divide(
    module: nn.Module,
    owner: nn.Module,
    device: torch.device,
    layout_of: Callable[[torch.Size], ShardLayout],
    place: int,
    flatten: bool,
) -> list[Handle]:
    """Divide the parameters of `module` that no inner unit has divided.

    A shard replaces each parameter, or with `flatten` one flat parameter of `owner` replaces all of one kind.
    """
    found = list(_parameters_of(module))
    for parameter, (_, names) in found:
        if hasattr(parameter, _DIVIDED):
            raise ValueError(
                f"XlaFullyShardedDataParallel: parameter {names[0]} is shared with a submodule that is wrapped by "
                f"itself, and would no longer be. Let one unit hold both: wrap the smallest module that contains them, "
                f"and leave the submodule out of auto_wrap_policy"
            )
    if not flatten:
        handles = [_one(parameter, *where, device, layout_of, place) for parameter, where in found]
    else:
        handles = _flat(found, owner, device, layout_of, place)
    for parameter, _ in found:
        setattr(parameter, _DIVIDED, True)
    return handles


_Where = tuple[tuple[tuple[nn.Module, str], ...], tuple[str, ...]]


def _parameters_of(module: nn.Module) -> Iterator[tuple[nn.Parameter, _Where]]:
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    names: dict[nn.Parameter, list[str]] = {}
    for prefix, each in module.named_modules():
        for name, parameter in parameters_of(each).items():
            if parameter is not None and not getattr(parameter, _SHARD, False):
                places.setdefault(parameter, []).append((each, name))
                names.setdefault(parameter, []).append(f"{prefix}.{name}" if prefix else name)
    for parameter, where in places.items():
        yield parameter, (tuple(where), tuple(names[parameter]))


def _shard_of(data: torch.Tensor, layout: ShardLayout, place: int, device: torch.device, trained: bool) -> nn.Parameter:
    if data.is_meta:
        raise ValueError(
            "XlaFullyShardedDataParallel: a parameter is on the meta device and has no values to divide. Give "
            "param_init_fn, or modules with reset_parameters()"
        )
    shard = nn.Parameter(layout.shard(data, place).to(device), requires_grad=trained)
    setattr(shard, _SHARD, True)
    if layout.count == identity.replica_count():
        setattr(shard, AVERAGED, True)
    return shard


def _one(
    parameter: nn.Parameter,
    places: tuple[tuple[nn.Module, str], ...],
    names: tuple[str, ...],
    device: torch.device,
    layout_of: Callable[[torch.Size], ShardLayout],
    place: int,
) -> Handle:
    layout = layout_of(parameter.shape)
    shard = _shard_of(parameter.data, layout, place, device, parameter.requires_grad)
    for module, name in places:
        parameters_of(module)[name] = shard
    return Handle(shard, layout, (ParameterPiece(places, names, parameter.shape, 0),))


def _flat(
    found: Sequence[tuple[nn.Parameter, _Where]],
    owner: nn.Module,
    device: torch.device,
    layout_of: Callable[[torch.Size], ShardLayout],
    place: int,
) -> list[Handle]:
    kinds: dict[Any, list[tuple[nn.Parameter, _Where]]] = {}
    for parameter, where in found:
        kinds.setdefault((parameter.dtype, parameter.requires_grad), []).append((parameter, where))
    handles = []
    for index, ((_, trained), members) in enumerate(kinds.items()):
        flat = torch.cat([parameter.data.reshape(-1) for parameter, _ in members])
        pieces, offset = [], 0
        for parameter, (places, names) in members:
            pieces.append(ParameterPiece(places, names, parameter.shape, offset))
            offset += parameter.numel()
            for module, name in places:
                del parameters_of(module)[name]
        layout = layout_of(flat.shape)
        shard = _shard_of(flat, layout, place, device, trained)
        owner.register_parameter(f"flat_param_{index}", shard)
        handles.append(Handle(shard, layout, tuple(pieces)))
    return handles


def materialize(module: nn.Module, device: torch.device, initialize: Callable[[nn.Module], None] | None) -> None:
    """Allocate and initialize modules on the meta device: by `initialize`, or by their `reset_parameters`."""
    for each in list(module.modules()):
        if not any(tensor.is_meta for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False))):
            continue
        if initialize is not None:
            initialize(each)
            continue
        reset: Any = getattr(each, "reset_parameters", None)
        if reset is None:
            raise ValueError(
                f"XlaFullyShardedDataParallel: {type(each).__name__} is on the meta device and has no "
                f"reset_parameters(); give param_init_fn"
            )
        each.to_empty(device=device, recurse=False)
        reset()
