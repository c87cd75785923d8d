"""`torch.compile` is prepared at its first call, and loops and branches find us."""

import importlib
from typing import Any

import torch

from torch_xla._engine.lowering.fx_graphs import interpreter

install: Any = importlib.import_module(
    "torch_xla._engine.compiled.dynamo.install"
)  # the room gives its function this name


def test_the_backends_are_there_by_every_name() -> None:
    install._prepare()
    assert set(install.NAMES) <= set(torch._dynamo.list_backends(exclude_tags=()))
    x = torch.arange(3.0).to("xla")
    for name in install.NAMES[:2]:
        assert torch.compile(lambda x: x * 2 + 1, backend=name)(x).tolist() == [1, 3, 5]


def test_compile_keeps_its_signature_and_is_prepared_once() -> None:
    assert torch.compile.__wrapped__.__name__ == "compile" and torch.compile.__doc__  # type: ignore[attr-defined]
    calls: list[tuple[object, ...]] = []
    wrapped = install._registering(lambda *args, **kwargs: calls.append((args, kwargs)))
    wrapped(1, backend="eager")
    assert calls == [((1,), {"backend": "eager"})] and install._prepare.cache_info().currsize == 1
    assert interpreter.higher_order  # the operators that `install` gave kernels
