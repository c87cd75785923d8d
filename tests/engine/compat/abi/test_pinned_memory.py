"""Pinned memory that PyTorch's C++ asks for is the host's, in every form of the request."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from torch_xla._engine.compat.abi import pinned_memory
from torch_xla._engine.dispatch.register import device_hooks

HOST = torch.arange(4.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(4, pin_memory=True).copy_(HOST),
        lambda: torch.zeros(4, pin_memory=True) + HOST,
        lambda: torch.tensor([0.0, 1, 2, 3], pin_memory=True),
        lambda: torch.empty_like(HOST, pin_memory=True).copy_(HOST),
        lambda: torch.empty_strided((4,), (1,), pin_memory=True).copy_(HOST),
        lambda: HOST.new_empty(4, pin_memory=True).copy_(HOST),
        lambda: torch.full((4,), 1.0, pin_memory=True) * HOST,
        lambda: torch.ops.aten._pin_memory(HOST, torch.device("xla")),
    ],
)
def test_pinned_memory_is_memory_of_the_host(make: Callable[[], torch.Tensor]) -> None:
    made = make()
    assert made.device.type == "cpu" and made.tolist() == [0, 1, 2, 3]
    assert made.to("xla", non_blocking=True).cpu().tolist() == [0, 1, 2, 3]


def test_saved_tensors_wait_in_pinned_memory() -> None:
    x = HOST.to("xla").requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="xla"):
        loss = (x.exp() * x).sum()
    loss.backward()
    expected = HOST.clone().requires_grad_()
    (expected.exp() * expected).sum().backward()
    torch.testing.assert_close(x.grad, expected.grad, check_device=False)


def _methods(hooks: object) -> int | None:
    place = ctypes.c_void_p.from_address(id(hooks) + object.__basicsize__).value
    return ctypes.c_void_p.from_address(place or 0).value


def test_a_method_that_has_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = next(kept for kept in device_hooks._keep if isinstance(kept, device_hooks._Hooks))
    before = _methods(hooks)
    monkeypatch.setattr(pinned_memory, "_ALLOCATOR", "no such function")
    with pytest.raises(RuntimeError, match="the allocators of torch .* differ .*: libc10 exports no no such function"):
        pinned_memory.answer_with_memory_of_the_host(hooks)
    assert _methods(hooks) == before
    asked: list[object] = []

    def refuse_to_pin(*_: object, **options: object) -> None:
        asked.append(options)
        raise NotImplementedError("You should register hooks")

    monkeypatch.undo()
    monkeypatch.setattr(torch, "empty", refuse_to_pin)
    with pytest.raises(RuntimeError, match=r"the methods of accelerator hooks of torch .* differ .* pip install"):
        pinned_memory.answer_with_memory_of_the_host(hooks)
    assert asked == [{"device": "cpu", "pin_memory": True}]
    assert _methods(hooks) == before
