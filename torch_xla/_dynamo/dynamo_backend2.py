"""A second name of the `torch.compile` backend, kept from the time when there were two backends."""

from collections.abc import Callable, Sequence

import torch

from .._engine.compiled.dynamo import registration


def dynamo_backend(fx: torch.fx.GraphModule, args: Sequence[object]) -> Callable[..., object]:
    """Compile for `torch.compile(backend=dynamo_backend)`; the same as `backend="openxla"`.

    >>> import torch, torch_xla
    >>> from torch_xla._dynamo.dynamo_backend2 import dynamo_backend
    >>> double = torch.compile(lambda x: x * 2, backend=dynamo_backend)
    >>> double(torch.ones(2, device="xla")).tolist()
    [2.0, 2.0]
    """
    return registration.compile_module(fx, args)
