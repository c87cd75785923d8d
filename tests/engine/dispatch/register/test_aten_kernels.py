"""Every operator that reaches a backend has a kernel, and every rule an operator that reaches it."""

from collections.abc import Callable

import pytest
import torch

import torch_xla
from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.register import aten_kernels
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.ir.graph_text import name_of
from torch_xla._engine.lowering.machinery.registry import all_rules
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.device import device_at


def names() -> list[str]:
    return [name for name in private.all_operator_names() if name.startswith("aten::")]


def test_every_operator_without_a_composition_has_a_kernel() -> None:
    composed = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    missing = [
        name
        for name in names()
        if not any(private.has_kernel(name, key) for key in composed)
        and not private.has_kernel(name, "PrivateUse1")
        and name not in aten_kernels._SHARING
    ]
    assert not missing


def test_every_rule_of_an_operator_is_reached() -> None:
    # `xla` composes the operators that the CPU composes: these rules are for traced graphs.
    composed = {"aten::conj_physical", "aten::matmul"}
    for op in all_rules():
        if isinstance(op, str) or not op.name().startswith("aten::"):
            continue
        name = op.name().removesuffix(".default")
        reached = private.has_kernel(name, "PrivateUse1") or private.has_kernel(name, "AutogradPrivateUse1")
        assert reached or name in composed or name in aten_kernels._SHARING, name


@pytest.mark.parametrize("activation", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_what_the_cpu_does_not_compose_is_one_operation(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(3).to("xla").requires_grad_()
    ones = torch.ones(3).to("xla")
    y = activation(x)
    torch_xla.sync()
    y.backward(ones)
    assert [name_of(operation) for operation in decode(device_at(0).tape.code)[1]] == [
        f"aten::{activation.__name__}_backward"
    ]


# Operators that only some of the supported releases of PyTorch have.
OF_OTHER_RELEASES = {"_flash_attention_forward_no_dropout_inplace", "cholesky", "cholesky.out"}


def test_special_kernels_are_of_operators_that_there_are() -> None:
    there = set(names())
    gone = {name for name in aten_kernels.special_kernels() if f"aten::{name}" not in there}
    assert gone <= OF_OTHER_RELEASES
    if torch.__version__.startswith("2.13."):
        assert not gone


@pytest.mark.parametrize(
    ("name", "writes"),
    [("aten::add_.Tensor", True), ("aten::_foreach_add_.Scalar", True), ("aten::add.Tensor", False),
     ("aten::native_batch_norm", True), ("aten::exp.out", False)],
)  # fmt: skip
def test_kernels_that_write_what_they_read_are_known(name: str, writes: bool) -> None:
    assert aten_kernels._writes(name) is writes


@pytest.mark.parametrize(
    ("name", "takes"),
    [("aten::add.Tensor", True), ("aten::mm", True), ("aten::where.self", False), ("aten::cat", False),
     ("aten::pow.Tensor_Tensor", True), ("aten::addmm", False), ("aten::exp", False)],
)  # fmt: skip
def test_calls_with_two_tensors_and_nothing_else_take_the_short_way(name: str, takes: bool) -> None:
    assert aten_kernels._takes_two(name, name.partition(".")[2]) is takes


def test_it_was_done_once() -> None:
    assert counters.value_of("RegisterXLAFunctions") in (None, 1)  # None: the counters were cleared since


def test_an_operator_at_the_end_of_python_is_refused_with_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="^aten::exp: Python is ending, .* in a function that `atexit` calls"):
        aten_kernels._refuse_at_the_end("aten::exp", torch.ones(1))
