"""The reducer of `DistributedDataParallel` for `find_unused_parameters` and `static_graph`; else PyTorch's reduces.

PyTorch's reducer needs pinned memory from a C++ backend to exchange the set of used parameters. Here all gradients are
reduced after the backward pass: the step is one program, in which the compiler starts each exchange as early as it can.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ..compat.names import torch as private
from ..compat.names import torch_distributed
from ..processes import coordination, identity
from .collective_arguments import write as write_results


class GradientBucket:
    """All gradients of one dtype, as a communication hook takes them: what PyTorch calls a `GradBucket`."""

    def __init__(self, parameters: Sequence[torch.Tensor], index: int, is_last: bool) -> None:
        self._parameters, self._index, self._is_last = list(parameters), index, is_last
        self._buffer = torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters]
        )

    def buffer(self) -> torch.Tensor:
        """Return the gradients, one behind the other; zeros are those of parameters without one."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the gradients."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return the parts of the buffer, in the shapes of the parameters."""
        parts = self._buffer.split([each.numel() for each in self._parameters])
        return [part.view(each.shape) for part, each in zip(parts, self._parameters, strict=True)]

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters."""
        return self._parameters

    def index(self) -> int:
        """Return the place of the bucket in the backward pass."""
        return self._index

    def is_last(self) -> bool:
        """Return whether no bucket comes after this one."""
        return self._is_last


class UsedParameters(torch_distributed.Reducer):  # type: ignore[misc]
    """Reduce the gradients of parameters that any process used, and do not change the others.

    The processes exchange their sets of used parameters in each pass, or with a static graph in the first pass. They do
    so over the host, so that the step remains one execution.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        bucket_indices: Any,
        per_bucket_size_limits: Any,
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 * 2**20,
        find_unused_parameters: bool = False,
        *arguments: Any,
        **options: Any,
    ) -> None:
        before = params, bucket_indices, per_bucket_size_limits, process_group, list(expect_sparse_gradients)
        super().__init__(*before, bucket_bytes_cap, False, *arguments, **options)
        self._parameters, self.group = list(params), process_group
        self._is_static = False
        self._used: set[int] = set()
        self._known: list[int] | None = None
        self._is_armed = self._is_queued = False
        self._watches = False
        self._hook: Callable[[GradientBucket], torch.futures.Future[torch.Tensor]] | None = None
        if find_unused_parameters:
            self._watch()

    def _set_static_graph(self) -> None:
        self._is_static = True
        self._watch()

    def _watch(self) -> None:
        """Record which parameters get gradients."""
        if not self._watches:
            self._watches = True
            for index, parameter in enumerate(self._parameters):
                parameter.register_post_accumulate_grad_hook(self._noting(index))

    def _noting(self, index: int) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            self._used.add(index)  # also within `no_sync()`: the pass behind it reduces what all of them left
            self._queue()

        return note

    def call(self, state: object, hook: Callable[[object, GradientBucket], torch.futures.Future[torch.Tensor]]) -> bool:
        """Let `hook` exchange the gradients, and return whether it is called here; else PyTorch's reducer calls it."""
        if self._watches:
            self._hook = functools.partial(hook, state)
        return self._watches

    def prepare_for_backward(self, outputs: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Let the next backward pass reduce."""
        if not self._watches:
            super().prepare_for_backward(outputs)
            return
        self._is_armed = True
        for output in [outputs] if isinstance(outputs, torch.Tensor) else outputs:
            if output.requires_grad:
                output.register_hook(lambda gradient: self._queue())

    def _delay_all_reduce(self) -> None:
        """Do nothing: everything is reduced at the end anyway."""

    def _queue(self) -> None:
        if self._is_armed and not self._is_queued:
            self._is_queued = True
            private.at_end_of_backward(self._reduce)

    @torch.no_grad()
    def _reduce(self) -> None:
        self._is_armed = self._is_queued = False
        indices = self._known
        if indices is None:
            indices = self._used_by_all()
            if self._is_static:
                self._known = indices
        self._used.clear()
        for index in indices:
            parameter = self._parameters[index]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[torch.Tensor] = [self._parameters[index].grad for index in indices]  # type: ignore[misc]
        if self._hook is not None:
            self._exchange_by_hook(set(indices))
        elif gradients:
            self.group.allreduce_coalesced(gradients).wait()
            write_results(gradients, [gradient / self.group.size() for gradient in gradients])

    def _exchange_by_hook(self, used: set[int]) -> None:
        """Give the hook the gradients of all parameters, in buckets that are the same in each process and pass."""
        assert self._hook is not None
        by_dtype: dict[torch.dtype, list[int]] = {}
        for index, parameter in enumerate(self._parameters):
            by_dtype.setdefault(parameter.dtype, []).append(index)
        for number, members in enumerate(by_dtype.values(), 1):
            bucket = GradientBucket([self._parameters[index] for index in members], number - 1, number == len(by_dtype))
            result = self._hook(bucket).wait()
            bucket.set_buffer(result if isinstance(result, torch.Tensor) else result[0])
            reduced, kept = bucket.gradients(), [place for place, index in enumerate(members) if index in used]
            old = [cast(torch.Tensor, self._parameters[members[place]].grad) for place in kept]
            write_results(old, [reduced[place] for place in kept])

    def _used_by_all(self) -> list[int]:
        own = bytes(index in self._used for index in range(len(self._parameters)))
        size = self.group.size()
        if size == 1:
            found = [own]
        elif size == identity.process_count():
            found = coordination.exchange("torch_xla.DistributedDataParallel.used", own)
        else:
            # Of a part of the processes only these come here, and they speak through the device.
            used = torch.tensor(list(own), dtype=torch.int32, device=self._parameters[0].device)
            self.group.allreduce([used]).wait()
            found = [bytes(map(bool, used.tolist()))]
        return [index for index in range(len(own)) if any(each[index] for each in found)]


def install() -> None:
    """Give `DistributedDataParallel` this reducer for modules on `xla`."""
    usual = torch_distributed.Reducer

    def make(params: Sequence[torch.Tensor], *arguments: Any, **options: Any) -> object:
        on_xla = bool(params) and all(parameter.device.type == "xla" for parameter in params)
        return (UsedParameters if on_xla else usual)(params, *arguments, **options)

    torch_distributed.give_data_parallel(make, UsedParameters)
