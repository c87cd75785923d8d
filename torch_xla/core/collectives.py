"""Operations across replicas, and who is who among them: the part of `xla_model` that is about other replicas.

Use these names from `torch_xla.core.xla_model`. Until several processes take part in a program it has one replica,
whose ordinal is 0. The collectives then return what they would for one replica, and refuse what one cannot do.

Common arguments: `groups` lists the ordinals that reduce together, each ordinal once, such as `[[0, 1], [2, 3]]`;
`None` is one group of all. `pin_layout` fixes the order of memory for programs that are compiled apart: one has no
choice to make.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, TextIO

import torch

from .._engine.client import processes
from .._engine.tensor import evaluate, ordinals, replicas, step
from .._engine.tensor.device import set_current_index
from .._engine.tensor.nested import replaced

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

Groups = Sequence[Sequence[int]] | None
Tensors = torch.Tensor | Sequence[torch.Tensor]


def get_ordinal(defval: int = 0) -> int:
    """Which replica this is, from 0 to `xrt_world_size() - 1`. New programs: `torch_xla.runtime.global_ordinal`.

    `defval` is accepted and not used: an ordinal is always known.
    """
    return processes.replica_index()


def get_local_ordinal(defval: int = 0) -> int:
    """Which replica this is, counted on this machine. New programs: `torch_xla.runtime.local_ordinal`."""
    return processes.local_replica_index()


def xrt_world_size(defval: int = 1) -> int:
    """How many replicas run this program. New programs: `torch_xla.runtime.world_size`.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.get_ordinal(), xm.xrt_world_size()
    (0, 1)
    """
    return processes.replica_count()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is replica 0: of this machine, or with `local=False` of the whole program.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.is_master_ordinal(local=False)
    True
    """
    return (processes.local_replica_index() if local else processes.replica_index()) == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """`print`, on replica 0 only: of the whole program, or with `local=True` of each machine.

    `fd` is the file to print to, by default the standard output.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.master_print("step", 3)
    step 3
    """
    if is_master_ordinal(local):
        print(*args, file=fd or sys.stdout, flush=flush)


def set_replication(device: str | torch.device, devices: Sequence[str | torch.device] | None) -> None:
    """Makes `device` the one of this thread: what a bare `"xla"` means here, and what `sync()` acts on.

    `devices`, the replicas that threads of one process used to be, must exist; replicas are processes, so there is
    still one.
    """
    for each in devices or ():
        ordinals.device_named(each)
    set_current_index(ordinals.index_of(device))


def all_reduce(
    reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True
) -> Tensors:
    """Reduces a tensor over the replicas of each group, then multiplies by `scale`.

    `reduce_type` is one of `xm.REDUCE_SUM`, `REDUCE_MUL`, `REDUCE_AND`, `REDUCE_OR`, `REDUCE_MIN`, `REDUCE_MAX`. A
    tensor gives a new tensor of its shape and dtype, through which gradients flow. A list of tensors is reduced in
    place, and returned. Raises `ValueError` for another `reduce_type` or for `groups` that do not hold each ordinal
    once.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_reduce(xm.REDUCE_SUM, torch.tensor([2.0, 4.0], device="xla"), scale=0.5).tolist()
    [1.0, 2.0]
    """
    replicas.check_reduction("all_reduce", reduce_type)
    replicas.check_groups("all_reduce", groups)
    if isinstance(inputs, torch.Tensor):
        return replicas.scaled(inputs, scale)
    replicas.scale_in_place(inputs, scale)
    return inputs


def all_gather(
    value: Tensors,
    dim: int = 0,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Tensors:
    """The values of all replicas of a group, concatenated along dimension `dim` in the order of their ordinals.

    `value` is a tensor of at least one dimension, or a list of them. `output`, of the shape (or shapes) of the result,
    is filled and returned if it is given. `channel_id` and `use_global_device_ids` are details of XLA without meaning
    for one replica. Raises `IndexError` for a dimension that is not there.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_gather(torch.arange(3, device="xla")).tolist()
    [0, 1, 2]
    """
    replicas.check_groups("all_gather", groups)
    for tensor in [value] if isinstance(value, torch.Tensor) else value:
        replicas.check_dim("all_gather", tensor, dim)
    gathered = value.clone() if isinstance(value, torch.Tensor) else [tensor.clone() for tensor in value]
    return replicas.into(output, gathered)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Splits `value` along one dimension, sends part i to replica i, and concatenates what came along another.

    `split_count` must be the number of replicas in a group.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_to_all(torch.ones(2, 3, device="xla"), 0, 1, split_count=1).shape
    torch.Size([2, 3])
    """
    replicas.check_groups("all_to_all", groups)
    replicas.check_dim("all_to_all", value, split_dimension)
    replicas.check_dim("all_to_all", value, concat_dimension)
    replicas.check_group_size("all_to_all", "split_count", split_count)
    return value.clone()


def reduce_scatter(
    reduce_type: str,
    input: Tensors,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Tensors:
    """Reduces over the replicas, multiplies by `scale`, and leaves each replica its part along `scatter_dim`.

    `shard_count` must be the number of replicas in a group. `input` is a tensor or a list of them; `output`, if it is
    given, is filled and returned.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.reduce_scatter(xm.REDUCE_SUM, torch.ones(4, device="xla"), 2.0, 0, 1).tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    replicas.check_reduction("reduce_scatter", reduce_type)
    replicas.check_groups("reduce_scatter", groups)
    replicas.check_group_size("reduce_scatter", "shard_count", shard_count)
    for tensor in [input] if isinstance(input, torch.Tensor) else input:
        replicas.check_dim("reduce_scatter", tensor, scatter_dim)
    one = isinstance(input, torch.Tensor)
    scattered = replicas.scaled(input, scale) if one else [replicas.scaled(tensor, scale) for tensor in input]
    return replicas.into(output, scattered)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What this replica receives when, for each pair (source, target), the source sends its `value` to the target.

    A replica that is nobody's target receives zeros.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.collective_permute(torch.ones(2, device="xla"), [[0, 0]]).tolist()
    [1.0, 1.0]
    """
    return replicas.permuted(value, pairs)


def collective_broadcast(
    tensors: Sequence[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Overwrites `tensors` on every replica with those of replica `root_ordinal`.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.collective_broadcast([torch.ones(2, device="xla")], root_ordinal=0)
    """
    replicas.check_groups("collective_broadcast", groups)
    replicas.check_ordinals("collective_broadcast", [root_ordinal])


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives every replica the parameters and buffers that `model` has on replica 0, and ends the step.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.broadcast_master_param(torch.nn.Linear(2, 2).to("xla"))
    """
    collective_broadcast([*model.parameters(), *model.buffers()])
    step.end_step()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits until every replica has come here, and returns what they brought, in the order of their ordinals.

    `replicas` are the ordinals that take part; only all of them can, which an empty list means too.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.rendezvous("checkpoint", b"done")
    [b'done']
    """
    return xla_rendezvous(payload, list(replicas), tag)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """`rendezvous` with its arguments in another order."""
    if not isinstance(payload, (bytes, bytearray)):
        raise TypeError(f"rendezvous({tag!r}): the payload is {type(payload).__name__}; expected bytes")
    replicas.check_groups("rendezvous", [list(ordinals)] if ordinals else None)
    return [bytes(payload)]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Collects `data` of all replicas on the host and returns `reduce_fn` of the list.

    `data` may be anything that can be pickled; `xla` tensors in it arrive on the CPU.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.mesh_reduce("loss", torch.tensor(3.0, device="xla"), lambda losses: sum(losses) / len(losses))
    tensor(3.)
    """
    return reduce_fn([replaced(data, _is_on_xla, evaluate.to_host)])


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Collection[int] | int = (0,)) -> Any:
    """Calls `target` with `data` on some replicas, and waits on all of them until it has returned there.

    `data`, a tuple of arguments or one argument, arrives on the CPU. Replicas that are not in `ordinals` get `None`.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.do_on_ordinals(max, (1, 2))
    2
    """
    chosen = [ordinals] if isinstance(ordinals, int) else ordinals
    if processes.replica_index() not in chosen:
        return None
    arguments = data if isinstance(data, tuple) else (data,)
    return target(*replaced(arguments, _is_on_xla, evaluate.to_host))


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of all parameters of an optimizer that have one: what is written to them reaches the parameters."""
    return replicas.gradients_of(optimizer)


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Averages the gradients of an optimizer's parameters over the replicas, in place.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.reduce_gradients(torch.optim.SGD(torch.nn.Linear(2, 2).to("xla").parameters(), lr=0.1))
    """
    count = processes.replica_count()
    all_reduce(REDUCE_SUM, replicas.gradients_of(optimizer), scale=1.0 / count, groups=groups, pin_layout=pin_layout)


def _is_on_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"
