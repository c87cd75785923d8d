"""Operators taken whole that PyTorch composes: their gradients are those of the composition."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import torch_xla
from tests.support.twins import check_same
from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.ops import whole_composites


@pytest.fixture(autouse=True)
def nobody_else_had_unusual_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset the state that the first unusual layer of a process sets, which makes other layers slower."""
    monkeypatch.setattr(whole_composites, "_broad_bias", False)
    monkeypatch.setattr(whole_composites, "_twice", [])
    yield
    for library in whole_composites._twice:
        private.unregister(library)


# Sizes of the input, the weight and the bias.
LINEARS = [
    ((3,), (3,), ()),
    ((3,), (3,), None),
    ((2, 5, 3), (3,), ()),
    ((3,), (4, 3), (4,)),
    ((3,), (4, 3), ()),
    ((2, 3), (4, 3), (1,)),
    ((2, 5, 3), (4, 3), None),
    ((5, 3), (4, 3), (5, 4)),
    ((5, 3), (4, 3), (5, 1)),
    ((2, 0), (4, 0), (4,)),
]


@pytest.mark.parametrize("sizes", LINEARS, ids=str)
def test_a_linear_layer_of_any_dimensions_has_its_gradients(sizes: tuple[Any, ...]) -> None:
    def program(d: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        operands = [torch.randn(size, generator=generator).to(d).requires_grad_() for size in sizes if size is not None]
        result = torch.nn.functional.linear(*operands)
        return result.detach(), torch.autograd.grad((result * result.detach()).sum(), operands)

    check_same(program, strides=0 not in sizes[0])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", LINEARS, ids=str)
def test_its_gradients_can_be_differentiated_again(sizes: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Gradients of complex numbers, and of vectors as weights, have gradients too, unlike PyTorch's formula."""

    def program(d: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        like = [torch.randn(size, dtype=dtype, generator=generator) for size in sizes if size is not None]
        operands = [x.to(d).requires_grad_() for x in like]
        result = torch.nn.functional.linear(*operands)
        first = torch.autograd.grad((result * result).abs().sum(), operands, create_graph=True)
        again = torch.autograd.grad(sum((x.abs() ** 2).sum() for x in first), operands)
        return [x.detach() for x in (result, *first)], again

    if dtype.is_complex and torch.__version__ < (2, 12):
        # That release differentiates linear layers of complex numbers on its own devices alone.
        with pytest.raises(RuntimeError, match="linear does not support automatic differentiation"):
            program("xla")
        return
    check_same(program, strides=len(sizes[1]) > 1 and 0 not in sizes[0])


# PyTorch scripts its formulas of tangents.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_linear_layer_is_composed_while_its_tangent_is_computed_and_whole_afterwards() -> None:
    def program(d: str) -> Any:
        x, weight = torch.arange(6.0).view(2, 3).to(d), torch.arange(12.0).view(4, 3).to(d)
        with forward_ad.dual_level():
            result = torch.nn.functional.linear(forward_ad.make_dual(x, torch.ones_like(x)), weight)
            return forward_ad.unpack_dual(result).tangent

    check_same(program)
    x, weight = torch.ones(2, 3).to("xla"), torch.ones(4, 3).to("xla")
    assert "aten::linear(" in torch_xla._XLAC._get_xla_tensors_text([torch.nn.functional.linear(x, weight)])
