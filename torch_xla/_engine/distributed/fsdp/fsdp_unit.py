"""An FSDP unit: gather its parameters, run its module, and free them again.

The parameters of the module are the shards. While the module runs, an instance attribute with the whole tensor hides
each shard. One autograd function makes the whole tensors; its gradient is a reduce-scatter. Where autograd would save a
whole tensor for the backward pass, it saves a reference, from which the tensor is gathered a second time.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...compat import patch_list
from ...compat.names import torch as private
from ...tensor import delayed_by_barrier
from ..collectives import Groups, all_reduce
from . import parameter_shards
from .parameter_shards import ShardLayout

# Tensors, the size of the group, the groups, and how many MiB may travel together.
Talk = Callable[[Sequence[torch.Tensor], int, Groups, float], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class ParameterPiece:
    """One parameter of the user's model: its module and name, its size, and its offset in the flat tensor."""

    places: tuple[tuple[nn.Module, str], ...]
    names: tuple[str, ...]
    size: torch.Size
    offset: int


@dataclass(frozen=True, slots=True)
class Handle:
    """A shard, and the parameters in its whole tensor: one parameter, or several flattened ones."""

    shard: nn.Parameter
    layout: ShardLayout
    pieces: tuple[ParameterPiece, ...]


@dataclass
class Exchange:
    """How a unit talks to the others of its group."""

    groups: Groups
    count: int
    place: int
    gather: Talk = parameter_shards.gather
    reduce_scatter: Talk = parameter_shards.reduce_scatter
    gather_mebibytes: float = 0
    reduce_mebibytes: float = 0


@dataclass
class Manner:
    """The options of a unit's communication: dtypes, order, and the divisors of a mean over processes."""

    compute_dtype: torch.dtype | None = None
    reduces_in_float32: bool = False
    ordered_forward: bool = True
    ordered_backward: bool = True
    before: float = 1.0
    after: float = 1.0


@dataclass(eq=False)
class ShardedUnit:
    """The sharded parameters that one wrapper owns."""

    handles: list[Handle]
    exchange: Exchange
    manner: Manner = field(default_factory=Manner)
    reduces: bool = True
    at_end: Callable[[], None] = lambda: None
    _again: list[torch.Tensor] | None = None
    _kept: list[torch.Tensor] | None = None
    _summed: dict[int, torch.Tensor] = field(default_factory=dict)
    _is_queued: bool = False

    def __post_init__(self) -> None:
        if self.exchange.count > 1:
            _tell_norms_of_parts()
            _divided.add(self)

    @contextlib.contextmanager
    def in_forward(self, reshards: bool) -> Iterator[list[torch.Tensor]]:
        """Give the module whole parameters within a `with` block; with `reshards`, autograd keeps notes instead of
        them.
        """
        whole = self._gathered(self.manner.ordered_forward)
        self._show(whole)
        try:
            if torch.is_grad_enabled() and reshards:
                with _notes_of(self, whole):
                    yield whole
            else:
                yield whole
                if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in whole):
                    self._kept = whole
        finally:
            self._hide()

    def begin_backward(self) -> None:
        """Gather the parameters for a recomputation in the backward pass: checkpoints, and saved references."""
        self._queue()
        self._show(self.again())

    def again(self) -> list[torch.Tensor]:
        """Return the whole tensors in the backward pass, gathered once."""
        if self._kept is not None:
            return self._kept
        if self._again is None:
            with torch.enable_grad():
                self._again = self._gathered(self.manner.ordered_backward)
        return self._again

    def end_backward(self) -> None:
        """Free the parameters that the backward pass gathered."""
        if self._again is not None or self._kept is not None:
            self._again = self._kept = None
            self._hide()

    def gather(self, parts: Sequence[torch.Tensor], ordered: bool) -> list[torch.Tensor]:
        """Return the whole tensors of shards."""
        # Not before what was recorded last is there: else the compiler gathers all units at the beginning.
        own = delayed_by_barrier(parts) if ordered else list(parts)
        dtype = self.manner.compute_dtype
        if dtype is not None:
            own = [part.to(dtype) if part.is_floating_point() else part for part in own]
        exchange = self.exchange
        rows = exchange.gather(own, exchange.count, exchange.groups, exchange.gather_mebibytes)
        return [handle.layout.whole(each) for handle, each in zip(self.handles, rows, strict=True)]

    def reduce(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of the shards; nothing yet where the unit only sums them up (`no_sync`)."""
        self.end_backward()
        trained = [index for index, handle in enumerate(self.handles) if handle.shard.requires_grad]
        results: list[torch.Tensor | None] = [None] * len(self.handles)
        if not self.reduces:
            for index in trained:
                self._sum_up(index, gradients[index])
            return results
        rows = [self._row_form(index, gradients[index]) for index in trained]
        self._summed.clear()
        exchange, manner = self.exchange, self.manner
        reduced = exchange.reduce_scatter(rows, exchange.count, exchange.groups, exchange.reduce_mebibytes)
        for index, row in zip(trained, reduced, strict=True):
            shard = self.handles[index].shard
            mean = row if manner.after == 1.0 else row / manner.after
            results[index] = mean.reshape(shard.shape).to(shard.dtype)
        return results

    def _gathered(self, ordered: bool) -> list[torch.Tensor]:
        whole = _Gathered.apply(self, ordered, *(handle.shard for handle in self.handles))
        return list(whole)

    def _sum_up(self, index: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            before = self._summed.get(index)
            self._summed[index] = gradient if before is None else before + gradient

    def _row_form(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor:
        handle = self.handles[index]
        self._sum_up(index, gradient)
        total = self._summed.get(index)
        if total is None:
            # Not used here; another process may have used it, and the exchange is one of all.
            dtype = self.manner.compute_dtype or handle.shard.dtype
            total = torch.zeros(handle.layout.size, dtype=dtype, device=handle.shard.device)
        if self.manner.reduces_in_float32:
            total = total.float()
        return handle.layout.rows(total if self.manner.before == 1.0 else total / self.manner.before)

    @torch.enable_grad()  # hooks of a backward pass run without; what is whole knows by itself whether it has any
    def _show(self, whole: Sequence[torch.Tensor]) -> None:
        for handle, tensor in zip(self.handles, whole, strict=True):
            flat = tensor.view(-1) if len(handle.pieces) > 1 else tensor
            for piece in handle.pieces:
                shown = tensor
                if len(handle.pieces) > 1:
                    shown = flat[piece.offset : piece.offset + piece.size.numel()].view(piece.size)
                elif tensor.shape != piece.size:
                    shown = tensor.view(piece.size)
                for module, name in piece.places:
                    module.__dict__[name] = shown

    def _hide(self) -> None:
        for handle in self.handles:
            for piece in handle.pieces:
                for module, name in piece.places:
                    module.__dict__.pop(name, None)
                    if isinstance(module, nn.RNNBase):
                        private.renew_list_of_weights(module)

    def _queue(self) -> None:
        if not self._is_queued:
            private.at_end_of_backward(self._finish)
            self._is_queued = True

    def _finish(self) -> None:
        self._is_queued = False
        self.end_backward()
        self.at_end()


# The units that hold a shard of tensors that other processes also hold shards of.
_divided: weakref.WeakSet[ShardedUnit] = weakref.WeakSet()


def _by_groups(
    tensors: Iterable[torch.Tensor], part: Callable[[Handle], torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[tuple[Exchange, list[torch.Tensor]]]]:
    """Return the `tensors` that are no `part` of a shard, and the others by their exchange, one for equal groups.

    The results have the order of `tensors`, which is the same in all processes.
    """
    parts = {id(each): (unit.exchange, each) for unit in _divided for handle in unit.handles for each in [part(handle)]}
    whole: list[torch.Tensor] = []
    found: dict[Groups, tuple[Exchange, list[torch.Tensor]]] = {}
    for tensor in tensors:
        if id(tensor) in parts:
            exchange = parts[id(tensor)][0]
            found.setdefault(exchange.groups, (exchange, []))[1].append(tensor)
        else:
            whole.append(tensor)
    return whole, list(found.values())


@functools.cache
def _tell_norms_of_parts() -> None:
    """Let PyTorch's norm of gradients, and so its `clip_grad_norm_`, cover all shards of a gradient."""
    patch_list.total_norm.wrap(_of_all_parts)


def _of_all_parts(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        norms, divided = _by_groups([tensors] if isinstance(tensors, torch.Tensor) else tensors, _gradient_of)
        for exchange, parts in divided:
            own = original(parts, norm_type, False, foreach).reshape(1)
            norms += exchange.gather([own], exchange.count, exchange.groups, 0)
        return original(norms, norm_type, error_if_nonfinite, foreach)

    return total_norm


def _gradient_of(handle: Handle) -> torch.Tensor | None:
    return handle.shard.grad


def found_by_any(found: torch.Tensor, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest `found` of the processes that hold parts of any of these parameters: all of them do the same
    then.
    """
    for exchange, _ in _by_groups(parameters, lambda handle: handle.shard)[1]:
        (found,) = all_reduce([found], "max", exchange.groups)
    return found


class _Gathered(torch.autograd.Function):
    """The whole tensors of the shards of a unit; the gradient of each shard is its part of the sum over the group."""

    @staticmethod
    def forward(ctx: Any, unit: ShardedUnit, ordered: bool, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        whole = unit.gather(parts, ordered)
        ctx.mark_non_differentiable(*(w for w, part in zip(whole, parts, strict=True) if not part.requires_grad))
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[object, ...]:
        return None, None, *ctx.unit.reduce(gradients)


@dataclass(frozen=True, slots=True)
class _Note:
    """A tensor that shows memory of a whole parameter: which, and what of it."""

    unit: ShardedUnit
    index: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


# The whole parameters that modules use at this moment, by their memory. Units may be inside each other.
_whole: dict[int, tuple[ShardedUnit, int]] = {}


@contextlib.contextmanager
def _notes_of(unit: ShardedUnit, whole: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let autograd keep a note of whole parameters that it saves, within a `with` block."""
    # Other hooks for saved tensors around this one, such as those of a checkpoint, receive all tensors but the
    # parameters.
    outer = private.saved_tensors_hooks_in_force()
    storages = [tensor.untyped_storage() for tensor in whole]  # alive, so that no other gets the id of one
    _whole.update({id(storage): (unit, index) for index, storage in enumerate(storages)})

    def pack(tensor: torch.Tensor) -> Any:
        found = _whole.get(id(tensor.untyped_storage())) if tensor.device.type == "xla" else None
        if found is not None:
            return _Note(*found, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor if outer is None else outer[0](tensor)

    def unpack(kept: object) -> Any:
        if isinstance(kept, _Note):
            return kept.unit.again()[kept.index].detach().as_strided(kept.size, kept.stride, kept.offset)
        return kept if outer is None else outer[1](kept)

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        for storage in storages:
            _whole.pop(id(storage), None)
