"""Operations across replicas, and the ordinals of replicas: the part of `xla_model` about other replicas.

Use these names from `torch_xla.core.xla_model`. Each process of a program is a replica (`torch_xla.launch`). A program
of one process has one replica, with ordinal 0. A collective is recorded like any operation and becomes a part of the
step's program. All replicas must record the same collectives in the same order. Each collective runs once, even if its
result is never read.

Common arguments: `groups` lists the ordinals that reduce together, each ordinal once, such as `[[0, 1], [2, 3]]`;
`None` is one group of all replicas. `pin_layout` is accepted and not used: all arrays of a program have the same
memory layout.
"""

import pickle
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, TextIO, TypeVar

import torch

from .._engine import config, distributed, processes, runtime, step, transfer
from .._engine import tensor as _tensor
from .._engine.pytree import with_tensors_replaced as replaced
from .._engine.tensor import set_current_index

R = TypeVar("R")
T = TypeVar("T")

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

Groups = Sequence[Sequence[int]] | None
Tensors = torch.Tensor | Sequence[torch.Tensor]


def get_ordinal(defval: int = 0) -> int:
    """Return the ordinal of this replica, from 0 to `xrt_world_size() - 1`.

    New programs call `torch_xla.runtime.global_ordinal`. `defval` is accepted and not used: an ordinal is always known.
    """
    return processes.replica_index()


def get_local_ordinal(defval: int = 0) -> int:
    """Return the ordinal of this replica on this machine. New programs: `torch_xla.runtime.local_ordinal`."""
    return processes.local_replica_index()


def xrt_world_size(defval: int = 1) -> int:
    """Return the number of replicas that run this program. New programs: `torch_xla.runtime.world_size`.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.get_ordinal(), xm.xrt_world_size()
    (0, 1)
    """
    return processes.replica_count()


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this is replica 0: of this machine, or with `local=False` of the whole program.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.is_master_ordinal(local=False)
    True
    """
    place = processes.place_of_process()  # under SPMD every process has ordinal 0
    return (place.local_index if local else place.index) == 0


def master_print(*args: object, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Print on replica 0 only: of the whole program, or with `local=True` of each machine.

    `fd` is the file to print to, by default the standard output.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.master_print("step", 3)
    step 3
    """
    if is_master_ordinal(local):
        print(*args, file=fd or sys.stdout, flush=flush)


def set_replication(device: str | torch.device, devices: Sequence[str | torch.device] | None) -> None:
    """Make `device` the device of this thread: a bare `"xla"` in this thread means it, and `sync()` acts on it.

    `devices` must exist, and do not change the number of replicas: replicas are processes. In earlier releases they
    were threads of one process.
    """
    for each in devices or ():
        _tensor.device_named(each)
    set_current_index(_tensor.device_index_of(device))


def all_reduce(
    reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True
) -> Tensors:
    """Reduce a tensor over the replicas of each group, then multiplies by `scale`.

    `reduce_type` is one of `xm.REDUCE_SUM`, `REDUCE_MUL`, `REDUCE_AND`, `REDUCE_OR`, `REDUCE_MIN`, `REDUCE_MAX`. For a
    tensor, returns a new tensor of its shape and dtype, through which gradients flow. A list of tensors is reduced in
    place and returned. Raises `ValueError` for another `reduce_type`, for one that the dtype does not have (bits of
    floats, the least complex number), and for `groups` that do not contain each ordinal once.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_reduce(xm.REDUCE_SUM, torch.tensor([2.0, 4.0], device="xla"), scale=0.5).tolist()
    [1.0, 2.0]
    """
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    distributed.check_reduction("all_reduce", reduce_type, tensors)
    distributed.check_groups("all_reduce", groups)
    among = distributed.groups_of(groups)
    if isinstance(inputs, torch.Tensor):
        if distributed.group_size(among) == 1:
            return inputs.clone() if scale == 1.0 else distributed.scaled(inputs, scale)
        result: torch.Tensor = distributed.Reduced.apply(inputs, reduce_type, scale, among)
        return result
    reduced = inputs if distributed.group_size(among) == 1 else distributed.all_reduce(inputs, reduce_type, among)
    if reduced is not inputs or scale != 1.0:
        distributed.write_results(inputs, [distributed.scaled(each, scale) for each in reduced])
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
    """Concatenate the values of all replicas of a group along dimension `dim`, in the order of their ordinals.

    `value` is a tensor of at least one dimension, or a list of them. `output`, of the shape (or shapes) of the result,
    is filled and returned if it is given. `channel_id` and `use_global_device_ids` are accepted and not used. Raises
    `IndexError` for a dimension that does not exist.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_gather(torch.arange(3, device="xla")).tolist()
    [0, 1, 2]
    """
    distributed.check_groups("all_gather", groups)
    one = isinstance(value, torch.Tensor)
    tensors = [value] if isinstance(value, torch.Tensor) else list(value)
    dims = {distributed.check_dim("all_gather", tensor, dim) for tensor in tensors}
    among = distributed.groups_of(groups)
    if distributed.group_size(among) == 1:
        gathered = [tensor.clone() for tensor in tensors]
    elif len(dims) == 1 and not any(tensor.requires_grad for tensor in tensors):
        gathered = distributed.all_gather(tensors, dims.pop(), among)
    else:
        place = distributed.place_in_group(among)
        gathered = [distributed.Gathered.apply(t, dim % t.dim(), place, among) for t in tensors]
    return distributed.copy_into(output, gathered[0] if one else gathered)


class CoalescingBuckets:
    """Call `func(tensors, outputs)` with lists of tensors of about `bucket_cap_mb` MiB, and collect its results.

    `outputs` is the part of `output_list` for these tensors, or `None` without an `output_list`. For a bucket of one
    tensor, `func` gets the tensor and its output instead of lists, and returns one result. A tensor above the limit
    joins the bucket if the bucket is below half of the limit and both together are below twice the limit. Calling the
    object processes `input_list`, a list of tensors; `add` puts a tensor into the bucket, `flush` processes the bucket.

    >>> import torch
    >>> CoalescingBuckets(lambda tensors, outputs: [len(tensors)] * len(tensors), [torch.ones(2)] * 3)()
    [3, 3, 3]
    """

    def __init__(
        self,
        func: Callable[[Any, Any], Any],
        input_list: Sequence[torch.Tensor],
        output_list: Sequence[torch.Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ) -> None:
        if not isinstance(input_list, (list, tuple)) or not all(isinstance(each, torch.Tensor) for each in input_list):
            raise TypeError("CoalescingBuckets: input_list must be a list of tensors")
        if output_list is not None and len(output_list) != len(input_list):
            raise ValueError(
                f"CoalescingBuckets: {len(input_list)} tensors and {len(output_list)} outputs; expected as many"
            )
        self._func, self._inputs, self._outputs = func, list(input_list), output_list
        self._cap = bucket_cap_mb * 2**20
        self._bucket: list[int] = []
        self._size = 0
        self.results: list[Any] = [None] * len(input_list)

    def add(self, tensor: torch.Tensor, idx: int) -> None:
        """Put `tensor`, number `idx` of the list, into the bucket."""
        self._inputs[idx] = tensor
        self._bucket.append(idx)
        self._size += _bytes_of(tensor)

    def flush(self) -> None:
        """Call `func` with the tensors in the bucket, and empty it."""
        bucket, self._bucket, self._size = self._bucket, [], 0
        tensors = [self._inputs[index] for index in bucket]
        outputs = None if self._outputs is None else [self._outputs[index] for index in bucket]
        if len(bucket) == 1:
            self.results[bucket[0]] = self._func(tensors[0], None if outputs is None else outputs[0])
        elif bucket:
            for index, result in zip(bucket, self._func(tensors, outputs), strict=True):
                self.results[index] = result

    def __call__(self) -> list[torch.Tensor]:
        for index, tensor in enumerate(self._inputs):
            size = _bytes_of(tensor)
            together = self._size + size
            if size > self._cap and 2 * self._size < self._cap and together <= 2 * self._cap:
                self.add(tensor, index)
                self.flush()
            else:
                if together > self._cap:
                    self.flush()
                self.add(tensor, index)
        self.flush()
        return self.results


def all_gather_bucketized(
    input_list: Sequence[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """Gather a list of tensors as `all_gather` does, with one collective for each part of `bucket_cap_mb` MiB.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> [t.tolist() for t in xm.all_gather_bucketized([torch.ones(1, device="xla")] * 2, bucket_cap_mb=1)]
    [[1.0], [1.0]]
    """
    gathered: list[torch.Tensor] = []
    for bucket in distributed.gradient_buckets(input_list, bucket_cap_mb):
        gathered += all_gather(bucket, dim, groups, pin_layout=pin_layout)
    return distributed.copy_into(output, gathered)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Split `value` along one dimension, send part i to replica i, and concatenate the received parts along another.

    `split_count` must be the number of replicas in a group.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.all_to_all(torch.ones(2, 3, device="xla"), 0, 1, split_count=1).shape
    torch.Size([2, 3])
    """
    distributed.check_groups("all_to_all", groups)
    split = distributed.check_dim("all_to_all", value, split_dimension)
    concat = distributed.check_dim("all_to_all", value, concat_dimension)
    among = distributed.groups_of(groups)
    distributed.check_group_size("all_to_all", "split_count", split_count, distributed.group_size(among))
    if split_count == 1:
        return value.clone()
    result: torch.Tensor = distributed.Exchanged.apply(value, split, concat, among)
    return result


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
    """Reduce over the replicas, multiply by `scale`, and keep on each replica its part along `scatter_dim`.

    `shard_count` must be the number of replicas in a group. `input` is a tensor or a list of tensors. If `output` is
    given, it is filled and returned.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.reduce_scatter(xm.REDUCE_SUM, torch.ones(4, device="xla"), 2.0, 0, 1).tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    one = isinstance(input, torch.Tensor)
    tensors = [input] if isinstance(input, torch.Tensor) else list(input)
    distributed.check_reduction("reduce_scatter", reduce_type, tensors)
    distributed.check_groups("reduce_scatter", groups)
    among = distributed.groups_of(groups)
    distributed.check_group_size("reduce_scatter", "shard_count", shard_count, distributed.group_size(among))
    dims = [distributed.check_dim("reduce_scatter", tensor, scatter_dim) for tensor in tensors]
    if shard_count == 1:
        parts = [tensor.clone() for tensor in tensors]
    elif reduce_type == REDUCE_SUM and any(tensor.requires_grad for tensor in tensors):
        parts = [distributed.Scattered.apply(t, d, among) for t, d in zip(tensors, dims, strict=True)]
    else:
        parts = (
            [distributed.reduce_scatter([t], reduce_type, d, among)[0] for t, d in zip(tensors, dims, strict=True)]
            if len(set(dims)) > 1
            else distributed.reduce_scatter(tensors, reduce_type, dims[0], among)
        )
    scattered = [distributed.scaled(part, scale) for part in parts]
    return distributed.copy_into(output, scattered[0] if one else scattered)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Sequence[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """Reduce a list of tensors as `reduce_scatter` does, with one collective for each part of `bucket_cap_mb` MiB.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> [t.tolist() for t in xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [torch.ones(1, device="xla")], 0.5, 0, 1)]
    [[0.5]]
    """
    scattered: list[torch.Tensor] = []
    for bucket in distributed.gradient_buckets(input_list, bucket_cap_mb):
        scattered += reduce_scatter(reduce_type, bucket, scale, scatter_dim, shard_count, groups)
    return distributed.copy_into(output, scattered)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Send `value` from source to target for each pair (source, target), and return the value that arrives here.

    A replica that is the target of no pair receives zeros.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.collective_permute(torch.ones(2, device="xla"), [[0, 0]]).tolist()
    [1.0, 1.0]
    """
    distributed.check_pairs(pairs)
    if processes.replica_count() == 1:
        return value.clone() if pairs else torch.zeros_like(value)
    result: torch.Tensor = distributed.Permuted.apply(value, pairs)
    return result


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Send `value` to the replica that calls `recv` with the same `channel_id`, and return `value`.

    A channel connects one sender and one receiver. The first call on each side waits for the other side, to learn its
    ordinal. The recorded operations are started, because the receiver waits for the value.
    """
    distributed.broadcast([value], 0, distributed.group_of_pair(*distributed.channel_partners(channel_id, sends=True)))
    distributed.start_recorded_collectives()
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Overwrite `output` with the value that another replica sends by `send` with the same `channel_id`; return it."""
    pair = distributed.group_of_pair(*distributed.channel_partners(channel_id, sends=False))
    distributed.write_results([output], distributed.broadcast([output], 0, pair))
    return output


def collective_broadcast(
    tensors: Sequence[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Overwrite `tensors` on every replica with those of replica `root_ordinal`.

    With `groups`, the root of each group is its member at the index that `root_ordinal` has in its own group.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.collective_broadcast([torch.ones(2, device="xla")], root_ordinal=0)
    """
    distributed.check_groups("collective_broadcast", groups)
    distributed.check_ordinals("collective_broadcast", [root_ordinal])
    among = distributed.groups_of(groups)
    if distributed.group_size(among) > 1 and tensors:
        place = next((group.index(root_ordinal) for group in among if root_ordinal in group), root_ordinal)
        distributed.write_results(tensors, distributed.broadcast(tensors, place, among))


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Copy the parameters and buffers of `model` on replica 0 to every replica, and end the step.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.broadcast_master_param(torch.nn.Linear(2, 2).to("xla"))
    """
    collective_broadcast([*model.parameters(), *model.buffers()])
    step.end_step()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until every replica has called this function, and return their payloads in the order of their ordinals.

    `replicas` must be the ordinals of all replicas; an empty list means all of them.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.rendezvous("checkpoint", b"done")
    [b'done']
    """
    return xla_rendezvous(payload, list(replicas), tag)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Call `rendezvous`, with the arguments in another order."""
    if not isinstance(payload, (bytes, bytearray)):
        raise TypeError(f"rendezvous({tag!r}): the payload is {type(payload).__name__}; expected bytes")
    distributed.check_groups("rendezvous", [list(ordinals)] if ordinals else None)
    if processes.process_count() > 1:
        # All local devices start together, so no replica waits for the one that uses its device first
        runtime.local_devices()
    return processes.exchange(str(tag), bytes(payload))


def mesh_reduce(tag: str, data: T, reduce_fn: Callable[[list[T]], R]) -> R:
    """Collect `data` of all replicas on the host and return `reduce_fn` of the list.

    `data` may be anything that can be pickled; `xla` tensors in it arrive on the CPU.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.mesh_reduce("loss", torch.tensor(3.0, device="xla"), lambda losses: sum(losses) / len(losses))
    tensor(3.)
    """
    own = replaced(data, _is_on_xla, transfer.copy_to_host)
    if processes.process_count() == 1:
        return reduce_fn([own])
    return reduce_fn([pickle.loads(each) for each in rendezvous(tag, pickle.dumps(own))])


def do_on_ordinals(target: Callable[..., object], data: object = (), ordinals: Collection[int] | int = (0,)) -> object:
    """Call `target` with `data` on some replicas, and wait on all replicas until it has returned there.

    `data`, a tuple of arguments or one argument, arrives on the CPU. Replicas that are not in `ordinals` get `None`.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.do_on_ordinals(max, (1, 2))
    2
    """
    chosen = [ordinals] if isinstance(ordinals, int) else ordinals
    arguments = replaced(data if isinstance(data, tuple) else (data,), _is_on_xla, transfer.copy_to_host)
    result = target(*arguments) if processes.replica_index() in chosen else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients of an optimizer's parameters that are not averaged yet, without a copy.

    For a model that `XlaFullyShardedDataParallel` divides among all processes, the backward pass has averaged them.
    """
    return distributed.gradients_of(optimizer)


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Average the gradients of an optimizer's parameters over the replicas, in place, unless they are already averaged.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.reduce_gradients(torch.optim.SGD(torch.nn.Linear(2, 2).to("xla").parameters(), lr=0.1))
    """
    cap = config.gradient_bucket_mebibytes()
    scale = 1.0 / processes.replica_count()
    all_reduce_bucketized_gradients(distributed.gradients_of(optimizer), scale, groups, pin_layout, cap)


def all_reduce_bucketized_gradients(
    gradients: Sequence[torch.Tensor],
    scale: float,
    groups: Groups = None,
    pin_layout: bool = True,
    bucket_cap_mb: int = 0,
) -> None:
    """Sum `gradients` over the replicas, times `scale`, in place, in parts of `bucket_cap_mb` MiB (0: in one part).

    >>> import torch, torch_xla.core.xla_model as xm
    >>> gradient = torch.ones(2, device="xla")
    >>> xm.all_reduce_bucketized_gradients([gradient], scale=0.5)
    >>> gradient.tolist()
    [0.5, 0.5]
    """
    for bucket in distributed.gradient_buckets(gradients, bucket_cap_mb):
        all_reduce(REDUCE_SUM, bucket, scale, groups, pin_layout)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_on_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"
