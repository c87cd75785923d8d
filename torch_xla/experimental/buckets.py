"""Functions of inputs whose sizes change: inputs are padded to a few sizes, and results are exact."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from .._engine.compat.names import torch as private
from .._engine.compat.names.torch import pytree
from .._engine.export import size_buckets as _buckets

# Below it a bucket saves less than it costs.
_LEAST = 8


def next_power_of_two(size: int) -> int:
    """Return the least power of two that is not smaller than `size`, and at least 8.

    >>> from torch_xla.experimental.buckets import next_power_of_two
    >>> [next_power_of_two(size) for size in (1, 8, 9, 100)]
    [8, 8, 16, 128]
    """
    return max(_LEAST, 1 << (size - 1).bit_length())


class bucketed:  # noqa: N801 - it is called as a function is
    """`function` for arguments whose sizes change: they are padded to a bucket, and each bucket has one program.

    `dims` names the dimensions that change, by the index of the argument: `{0: 1}`, or several as in `{0: (0, 1)}`. A
    mark on an argument, `torch._dynamo.mark_dynamic(x, 1)` or `torch_xla._XLAC._xla_mark_dynamic(x, 1)`, does the same
    for this and all later calls. Sizes that are equal in all calls are one symbol, as PyTorch's export finds them.
    `buckets` are the padded sizes, ascending, or a function of a size; the default is the next power of two.

    `function` is a module or a function of tensors without effects. `torch.export` traces it once, with its weights,
    which may be trained. Results and gradients are exactly those of the unpadded arguments, up to the order of sums:
    where padding would affect an operation, it is masked, and the size itself is an argument of the program. An
    argument on the CPU is padded on the CPU and then moved. An argument on the device is first copied to the CPU,
    unless it is a result of a bucketed function, whose memory is already padded. Results are views of padded memory.
    Operations on results outside of the function are compiled for each size, so put the loss into the function.

    Raises `ValueError` for a size above the largest bucket and for arguments whose sizes contradict each other. Raises
    `NotImplementedError`, with a remedy, for a function that draws random numbers or writes to buffers, and for
    operations that are not known to be exact on padded operands. Gradients of gradients are not available.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.buckets import bucketed
    >>> mean = bucketed(lambda x: x.mean(0), {0: 0}, buckets=(4, 16))
    >>> mean(torch.arange(3.0)), mean(torch.arange(4.0))
    (tensor(1., device='xla:0'), tensor(1.5000, device='xla:0'))
    """

    def __init__(
        self,
        function: Callable[..., object],
        dims: Mapping[int, int | Sequence[int]] | None = None,
        buckets: Sequence[int] | Callable[[int], int] | None = None,
    ) -> None:
        self._function = function
        self._dims = {place: {dim} if isinstance(dim, int) else set(dim) for place, dim in (dims or {}).items()}
        self._buckets = buckets
        self._traced: dict[Hashable, _buckets.TracedForSizes] = {}

    def __call__(self, *args: object) -> Any:
        """Return the results for these arguments: tensors on the device, nested as the function returns them."""
        for place, arg in enumerate(args):
            marked = private.dynamic_dims(arg)
            if marked:
                self._dims.setdefault(place, set()).update(marked)
        for place in self._dims:
            if place >= len(args) or not isinstance(args[place], torch.Tensor):
                raise ValueError(f"bucketed(): argument {place} has sizes that change; expected a tensor")
        traced = self._traced_for(args)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        counts = _sizes_of(traced, tensors)
        bucket = _buckets.Bucket(traced, tuple(map(self._room, counts)))
        results = _buckets.Bucketed.apply(bucket, counts, *traced.weights, *tensors)
        return pytree.tree_unflatten(results, traced.tree)

    def _traced_for(self, args: Sequence[object]) -> _buckets.TracedForSizes:
        training = isinstance(self._function, torch.nn.Module) and self._function.training
        key = (training, *(self._kind(place, arg) for place, arg in enumerate(args)))
        if key not in self._traced:
            self._traced[key] = _buckets.trace(self._function, args, self._dims)
        return self._traced[key]

    def _kind(self, place: int, arg: object) -> tuple[object, object]:
        if not isinstance(arg, torch.Tensor):
            return type(arg), repr(arg)
        changing = self._dims.get(place, set())
        return arg.dtype, tuple(None if dim in changing else size for dim, size in enumerate(arg.shape))

    def _room(self, size: int) -> int:
        if callable(self._buckets):
            return self._buckets(size)
        if self._buckets is None:
            return next_power_of_two(size)
        fitting = [bucket for bucket in sorted(self._buckets) if bucket >= size]
        if not fitting:
            raise ValueError(
                f"bucketed(): a size of {size} is above the largest bucket, {max(self._buckets)}; add a larger one"
            )
        return fitting[0]


def _sizes_of(traced: _buckets.TracedForSizes, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the size for each symbol in this call."""
    found: dict[str, int] = {}
    for tensor, described in zip(tensors, traced.inputs[len(traced.weights) :], strict=True):
        for size, name in zip(tensor.shape, described.shape, strict=True):
            if isinstance(name, int):
                continue
            if found.setdefault(str(name), size) != size:
                raise ValueError(
                    f"bucketed(): sizes that were equal in the first call are {found[str(name)]} and {size} now, the "
                    f"latter of a tensor of shape {list(tensor.shape)}"
                )
    return tuple(found[symbol] for symbol in traced.symbols)
