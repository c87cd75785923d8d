"""`torch.compile` is prepared at its first call, and loops and branches find us."""

import importlib
import sys
from typing import Any

import pytest
import torch

from torch_xla._engine.compat import patch_list
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


class Library:
    """What `torch.compiler.precompile` of PyTorch 2.14 and 2.15 lowers by."""

    class PrecompiledModule:
        _backend = "inductor"

        def _compile(self, args: Any) -> Any:
            return self._backend


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("asked", ["inductor", "eager"])
def test_a_precompiled_function_keeps_its_graph(device: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._precompile", Library)
    monkeypatch.setattr(torch, "_precompile", Library, raising=False)
    monkeypatch.setattr(Library.PrecompiledModule, "_compile", Library.PrecompiledModule._compile)
    patch_list.precompiled.wrap(install._keeping_graphs)
    expected = "eager" if device == "xla" else asked
    for args in ((torch.nn.Linear(2, 2).to(device), torch.ones(2)), (None, {"x": [torch.ones(2, device=device)]})):
        module = Library.PrecompiledModule()
        module._backend = asked
        assert module._compile(args) == expected
