"""`torch.distributed` on `xla`: a process group whose collectives are recorded like any operation.

The result of a collective is recorded when the call returns, so its `Work` is always complete. The collective runs in
the step's program, or when a result is read.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..compat.names import torch_distributed
from ..compat.names.torch_distributed import ProcessGroup, done
from .collective_arguments import check_dtypes
from .collectives import Groups, all_gather, all_reduce, all_to_all, group_with, groups_of
from .collectives import broadcast as broadcast_values
from .collectives import pair as pair_groups
from .collectives import reduce_scatter as reduce_scatter_values
from .collectives import start as start_collectives
from .host_collectives import HostGroup, or_here
from .point_to_point import exchange as exchange_message
from .point_to_point import to_device, write

Tensors = Sequence[torch.Tensor]

_REDUCTIONS = {
    "SUM": "sum", "AVG": "sum", "PRODUCT": "mul", "MIN": "min", "MAX": "max", "BAND": "and", "BOR": "or", "BXOR": "xor",
    "PREMUL_SUM": "sum",
}  # fmt: skip


class XlaGroup(ProcessGroup):
    """The processes `ranks` of the program, in this order."""

    # PyTorch asks a backend for these, and this object is also the backend. It supports none of them.
    supports_coalescing = supports_splitting = supports_time_estimate = False

    def __init__(self, rank: int, ranks: Sequence[int], timeout: object = None, store: object = None) -> None:
        super().__init__(rank, len(ranks))
        self.host = HostGroup(store, rank, ranks, timeout)
        self._ranks = list(ranks)
        self._groups = group_with(self._ranks)
        self._name = ""

    @property
    def group_name(self) -> str:
        """The name by which PyTorch finds the group."""
        return self._name

    def global_rank(self, place: int) -> int:
        """Return which process of the program has a place in the group."""
        return self._ranks[place]

    def exchange_in(self, groups: Sequence[Sequence[int]]) -> None:
        """Use `groups` for the collectives of this group; one of them must be this group, in its order.

        By default each process derives the other groups from its own. Raises `ValueError` if none of `groups` is this
        group.
        """
        if self._ranks not in [list(group) for group in groups]:
            raise ValueError(f"mesh {[list(group) for group in groups]} has no group {self._ranks}")
        self._groups = groups_of(groups)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "xla"

    @property
    def _device_types(self) -> list[torch.device]:
        # Tensors on the CPU are taken in any case; PyTorch sends some there if it hears so.
        return [
            torch.device(each) for each in ("cpu", "xla") if each in ("xla", *torch_distributed.devices_asked_for(self))
        ]

    def _get_backend(self, device: torch.device) -> object:
        return self.host.connection() if device.type == "cpu" and device in self._device_types else self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return whether the group allocates tensors that are exchanged faster than others."""
        return False

    @or_here
    def allreduce(self, tensors: Tensors, opts: object = None) -> Any:
        """Overwrite each tensor with its reduction over the group."""
        return self._reduce_in_place(tensors, getattr(opts, "reduceOp", "SUM"))

    def allreduce_coalesced(self, tensors: Tensors, opts: object = None) -> Any:
        """Overwrite each tensor with its reduction over the group."""
        return self._reduce_in_place(tensors, getattr(opts, "reduceOp", "SUM"))

    @or_here
    def reduce(self, tensors: Tensors, opts: Any) -> object:
        """Overwrite the tensors of the root with their reduction over the group."""
        if self._is_single():
            return self._reduce_in_place(tensors, opts.reduceOp)
        reduced = self._reduced(tensors, opts.reduceOp)
        if self.rank() == opts.rootRank:
            write(tensors, reduced)
        else:
            start_collectives()
        return done(list(tensors))

    @or_here
    def broadcast(self, tensors: Tensors, opts: object = None) -> Any:
        """Overwrite the tensors with those of the root."""
        if not self._is_single():
            write(tensors, _broadcast(tensors, getattr(opts, "rootRank", 0), self._groups))
        return done(list(tensors))

    @or_here
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None) -> object:
        """Fill each list with the tensors of all processes."""
        even = []
        for targets, given in zip(outputs, inputs, strict=True):
            if _are_of_one_size(targets):
                even.append((targets, given))
            else:
                self._gather_uneven(targets, given)
        for (targets, _), rows in zip(even, self._rows_of_each([given for _, given in even]), strict=True):
            write(targets, rows)
        return done([list(targets) for targets in outputs])

    def _gather_uneven(self, targets: Tensors, given: torch.Tensor) -> None:
        for root, target in enumerate(targets):
            own = given if root == self.rank() else target
            write([target], [own] if self._is_single() else _broadcast([own], root, self._groups))

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: object = None) -> object:
        """Fill `output_lists[rank][index]` with input `index` of each process."""
        for index, rows in enumerate(self._rows_of_each(inputs)):
            write([targets[index] for targets in output_lists], rows)
        return done([list(targets) for targets in output_lists])

    @or_here
    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> object:
        return self.allgather_into_tensor_coalesced([output], [input])

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> object:
        """Fill each output with the concatenated inputs of all processes."""
        flat = [given.reshape(1, -1) for given in inputs]
        gathered = flat if self._is_single() else _all_gather(flat, 0, self._groups)
        write(outputs, [rows.reshape(out.shape) for rows, out in zip(gathered, outputs, strict=True)])
        return done(list(outputs))

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: object = None) -> object:
        """Fill each output with the reduction of all processes' inputs for this process."""
        op = getattr(opts, "reduceOp", "SUM")
        even = []
        for target, given in zip(outputs, inputs, strict=True):
            if _are_of_one_size(given):
                even.append((target, torch.stack(list(given))))
            else:
                write([target], [self._reduced(given, op)[self.rank()]])
        self._scatter_reduced([target for target, _ in even], [given for _, given in even], op)
        return done(list(outputs))

    def reduce_scatter_coalesced(self, outputs: Tensors, inputs: Sequence[Tensors], opts: object = None) -> object:
        """Do as `reduce_scatter`; where all processes bring equal sizes, in one collective."""
        return self.reduce_scatter(outputs, inputs, opts)

    @or_here
    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> object:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> object:
        """Fill each output with its part of the reduction of an input."""
        self._scatter_reduced(outputs, inputs, getattr(opts, "reduceOp", "SUM"))
        return done(list(outputs))

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @or_here
    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: object = None,
    ) -> object:
        """Send parts of the first dimension of `input` to all processes, and fill `output` with theirs."""
        size = self.size()
        even = not input_sizes and not output_sizes
        if self._is_single():
            write([output], [input])
        elif even and input.dim() and input.shape[0] % size == 0:
            moved = _all_to_all(input, 0, 0, self._groups)
            write([output], [moved.reshape(output.shape)])
        else:
            sent = list(input.split(input_sizes or [input.shape[0] // size] * size))
            received = list(output.split(output_sizes or [output.shape[0] // size] * size))
            self.alltoall(received, sent)
        return done([output])

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> object:
        """Send input i to process i, and fill output i with the tensor from process i."""
        if self._is_single():
            write(outputs, inputs)
        else:
            self._exchange_in_pairs(outputs, inputs)
        return done(list(outputs))

    def _exchange_in_pairs(self, outputs: Tensors, inputs: Tensors) -> None:
        # Sizes that are equal here may differ on other processes, so a single exchange may be impossible. The two
        # processes of
        # a pair know both of their sizes: each pair exchanges separately, in an order without circular waits.
        own = self.rank()
        write([outputs[own]], [inputs[own]])
        for low in range(self.size()):
            for high in range(low + 1, self.size()):
                if own in (low, high):
                    other = low + high - own
                    pair = pair_groups(self._ranks[low], self._ranks[high])
                    write([outputs[other]], [_swapped(inputs[other], outputs[other], own == high, pair)])

    @or_here
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> object:
        """Fill the list of the root with the tensors of all processes."""
        for index, given in enumerate(inputs):
            rows = self._rows(given)
            if self.rank() == opts.rootRank:
                write(outputs[index], rows)
        if self.rank() != opts.rootRank:
            start_collectives()
        return done([list(targets) for targets in outputs])

    @or_here
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> object:
        """Fill the output of process i with tensor i of the root."""
        for index, target in enumerate(outputs):
            own = (
                torch.stack(list(inputs[index]))
                if self.rank() == opts.rootRank
                else target.new_zeros((self.size(), *target.shape))
            )
            sent = [own] if self._is_single() else _broadcast([own], opts.rootRank, self._groups)
            write([target], [sent[0][self.rank()]])
        if self.rank() == opts.rootRank:
            start_collectives()
        return done(list(outputs))

    @or_here
    def send(self, tensors: Tensors, to: int, tag: int = 0) -> object:
        """Send tensors to one process of the group."""
        return exchange_message(tensors, self.global_rank(self.rank()), self.global_rank(to), tag)

    @or_here
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> object:
        """Overwrite tensors with those of one process of the group."""
        return exchange_message(tensors, self.global_rank(source), self.global_rank(self.rank()), tag)

    @or_here
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> object:
        """Raise: a program has to name both ends."""
        raise NotImplementedError("recv(src=None): on xla the sender must be named, as both run one program")

    def _start_coalescing(self, device: torch.device) -> None:
        # Operations recorded before a result is read form one program, in which collectives of one kind are already
        # combined.
        pass

    def _end_coalescing(self, device: torch.device) -> object:
        return done([])

    def barrier(self, opts: object = None) -> object:
        """Wait until all processes of the group have run their earlier recorded operations."""
        if not self._is_single():
            token = torch.ones(1, device="xla")
            write([token], _all_reduce([token], "sum", self._groups))
            token.item()
        return done([])

    def monitored_barrier(self, opts: object = None, wait_all_ranks: bool = False) -> None:
        """Wait as `barrier` does."""
        self.barrier()

    def _is_single(self) -> bool:
        return self.size() == 1

    def _reduce_in_place(self, tensors: Tensors, op: object) -> object:
        for target, reduced in zip(tensors, self._reduced(tensors, op), strict=True):
            if reduced is not target:
                write([target], [reduced])
        return done(list(tensors))

    def _reduced(self, tensors: Tensors, op: object) -> list[torch.Tensor]:
        name = _name_of(op, tensors)
        tensors = _multiplied(tensors, op, name)
        if self._is_single():
            return list(tensors)
        return self._averaged(_all_reduce(tensors, _REDUCTIONS[name], self._groups), name)

    def _scatter_reduced(self, outputs: Tensors, inputs: Tensors, op: object) -> None:
        name, size = _name_of(op, inputs), self.size()
        flat = [given.reshape(size, -1) for given in _multiplied(inputs, op, name)]
        parts = flat
        if not self._is_single():
            parts = self._averaged(_reduce_scatter(flat, _REDUCTIONS[name], 0, self._groups), name)
        write(outputs, [part.reshape(out.shape) for part, out in zip(parts, outputs, strict=True)])

    def _averaged(self, tensors: list[torch.Tensor], name: str) -> list[torch.Tensor]:
        if name != "AVG":
            return tensors
        return [t / self.size() if t.is_floating_point() or t.is_complex() else t // self.size() for t in tensors]

    def _rows(self, given: torch.Tensor) -> list[torch.Tensor]:
        return self._rows_of_each([given])[0]

    def _rows_of_each(self, tensors: Tensors) -> list[list[torch.Tensor]]:
        if self._is_single():
            return [[given] for given in tensors]
        return [list(gathered.unbind()) for gathered in _all_gather([t.unsqueeze(0) for t in tensors], 0, self._groups)]


def _swapped(given: torch.Tensor, like: torch.Tensor, place: int, pair: Groups) -> torch.Tensor:
    """Exchange `given` with the other process of a pair for a tensor like `like`; `place` is 0 or 1."""
    length = max(given.numel(), like.numel())
    if not length:
        return like
    flat = torch.nn.functional.pad(given.reshape(-1), (0, length - given.numel()))
    theirs = _all_gather([flat.unsqueeze(0)], 0, pair)[0][1 - place]
    return theirs[: like.numel()].view(like.shape)


def _are_of_one_size(tensors: Tensors) -> bool:
    return len({tuple(tensor.shape) for tensor in tensors}) == 1


def _name_of(op: object, tensors: Tensors) -> str:
    name = str(getattr(op, "op", op)).rpartition(".")[2].upper()
    if name not in _REDUCTIONS:
        raise ValueError(
            f"torch.distributed on xla: reduction {op} is not supported; use one of {', '.join(_REDUCTIONS)}"
        )
    check_dtypes(f"torch.distributed on xla: reduction {name}", _REDUCTIONS[name], tensors)
    return name


def _multiplied(tensors: Tensors, op: object, name: str) -> list[torch.Tensor]:
    """Multiply what each process brings to `ReduceOp.PREMUL_SUM` by its factor, a number or a tensor of one element."""
    if name != "PREMUL_SUM":
        return list(tensors)
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(
                f"torch.distributed on xla: reduction PREMUL_SUM multiplies floating-point tensors, and a tensor has "
                f"dtype {tensor.dtype}; convert it, or use SUM"
            )
    factor = torch_distributed.factor_of(op)
    return [(tensor * factor).to(tensor.dtype) for tensor in tensors]


def _broadcast(tensors: Tensors, root: int, groups: Groups) -> list[torch.Tensor]:
    return broadcast_values(to_device(tensors), root, groups)


def _all_gather(tensors: Tensors, dim: int, groups: Groups) -> list[torch.Tensor]:
    return all_gather(to_device(tensors), dim, groups)


def _all_reduce(tensors: Tensors, reduction: str, groups: Groups) -> list[torch.Tensor]:
    return all_reduce(to_device(tensors), reduction, groups)


def _reduce_scatter(tensors: Tensors, reduction: str, dim: int, groups: Groups) -> list[torch.Tensor]:
    return reduce_scatter_values(to_device(tensors), reduction, dim, groups)


def _all_to_all(tensor: torch.Tensor, split: int, concat: int, groups: Groups) -> torch.Tensor:
    return all_to_all(to_device([tensor])[0], split, concat, groups)
