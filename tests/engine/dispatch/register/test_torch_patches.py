"""PyTorch's patched functions work for `xla`, and do not change other devices."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.twins import Program, cases, check_refused, check_same
from torch_xla._engine.dispatch import recording_kernel
from torch_xla._engine.dispatch.register import torch_patches

HOST = torch.arange(3.0)


def test_tensors_and_modules_move_by_a_method_of_the_name() -> None:
    for name in (None, 0, "xla", "xla:0", torch.device("xla")):
        moved = HOST.xla() if name is None else HOST.xla(name)  # type: ignore[attr-defined]
        assert moved.is_xla and moved.device == torch.device("xla:0") and not HOST.is_xla
    module = nn.Linear(2, 2)
    assert module.xla() is module and module.weight.is_xla  # type: ignore[operator, union-attr]


def test_a_new_tensor_is_on_the_device_of_the_tensor() -> None:
    x = HOST.to("xla")
    assert x.new_tensor([1]).is_xla and not x.new_tensor([1], device="cpu").is_xla
    assert not HOST.new_tensor([1]).is_xla and HOST.new_tensor([1], device="xla").is_xla


def test_memory_of_the_host_is_as_good_as_pinned_and_says_it_is_not() -> None:
    assert HOST.pin_memory() is HOST and HOST.pin_memory("xla") is HOST
    assert not HOST.is_pinned() and not HOST.is_pinned("xla")


def test_memory_belongs_to_the_one_stream() -> None:
    assert torch.ones(2, device="xla").record_stream(torch.xla.current_stream()) is None  # type: ignore[attr-defined]
    with pytest.raises((RuntimeError, NotImplementedError)):
        HOST.record_stream(torch.Stream("cpu"))


@cases(
    {
        "apply_": lambda d: torch.arange(6.0, device=d).view(2, 3).t().apply_(lambda x: x * 2 + 1),
        "map_": lambda d: torch.ones(2, 3, device=d).map_(torch.arange(3.0, device=d), lambda x, y: x + 2 * y),
        "map2_": lambda d: torch.ones(2, dtype=torch.int64, device=d).map2_(
            *torch.arange(4, device=d).view(2, 2), lambda x, y, z: x + y * z
        ),
        "of a slice": lambda d: _with_negated_slice(torch.arange(6.0, device=d)),
    }
)
def test_a_python_function_is_called_for_each_element_on_the_host(program: Program) -> None:
    check_same(program)


def _with_negated_slice(x: torch.Tensor) -> torch.Tensor:
    part = x[1::2]
    assert part.apply_(lambda each: -each) is part
    return x


@cases(
    {
        "of what requires a gradient": lambda d: torch.ones(2, device=d, requires_grad=True).apply_(abs),
        "too large": lambda d: torch.ones(2, device=d).map_(torch.ones(3, device=d), lambda x, y: x),
        "no function": lambda d: torch.ones(2, device=d).map_(torch.ones(2, device=d), "abs"),
        "it raises": lambda d: torch.ones(2, device=d).apply_(lambda x: x / 0),
    }
)
def test_a_python_function_of_each_element_is_refused_as_on_the_cpu(program: Program) -> None:
    check_refused(program)


def test_backward_runs_in_the_thread_of_who_calls_it() -> None:
    threads: list[threading.Thread] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            threads.append(threading.current_thread())
            return gradient

    x = HOST.to("xla").requires_grad_()
    Noting.apply(x).sum().backward()
    assert threads == [threading.current_thread()]


def test_who_watches_is_told_before_and_after_a_backward_pass_that_fails_too() -> None:
    told: list[bool] = []
    torch_patches.around_backward.append(told.append)
    try:
        x = HOST.to("xla").requires_grad_()
        x.sum().backward()
        HOST.clone().requires_grad_().sum().backward()  # of another device
        y = x.exp()
        y.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.sum().backward()
    finally:
        torch_patches.around_backward.remove(told.append)
    assert told == [True, False] * 3


@pytest.mark.parametrize("in_library", [False, True])
def test_an_implementation_for_xla_is_called(in_library: bool) -> None:
    name = f"library_test_{in_library}".lower()
    library = torch.library.Library(name, "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CPU")
    other = torch.library.Library(name, "IMPL", "XLA" if in_library else "")
    if in_library:
        other.impl("twice", lambda x: x * 2 + 100)
    else:
        torch.library.impl(other, "twice", "XLA")(lambda x: x * 2 + 100)
    try:
        twice = getattr(torch.ops, name).twice
        assert twice(torch.ones(2, device="xla")).tolist() == [102.0, 102.0]
        assert twice(torch.ones(2)).tolist() == [2.0, 2.0]
    finally:
        delattr(torch.ops, name)  # before PyTorch 2.13 an export stumbles over operators that are gone


def test_a_custom_operator_for_xla() -> None:
    @torch.library.custom_op("library_test::thrice", mutates_args=(), device_types="xla")
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert thrice(torch.ones(2, device="xla")).tolist() == [3.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
@pytest.mark.parametrize("change", [torch.set_default_dtype, torch.set_default_tensor_type])
def test_a_change_of_the_default_dtype_is_noted(change: Callable[..., None]) -> None:
    change(torch.float64 if change is torch.set_default_dtype else torch.DoubleTensor)
    try:
        assert recording_kernel._default_dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert recording_kernel._default_dtype is None
