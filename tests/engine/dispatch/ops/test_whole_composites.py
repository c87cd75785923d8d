"""Operators taken whole that PyTorch composes: their gradients are those of the composition."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import torch_xla
from tests.support.twins import check_same
from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.ops import whole_composites
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.ir.graph_text import name_of
from torch_xla._engine.tensor.device import device_at


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
def test_a_linear_layer_is_composed_while_its_tangent_is_computed_and_whole_afterwards() -> None:
    def program(d: str) -> Any:
        x, weight = torch.arange(6.0).view(2, 3).to(d), torch.arange(12.0).view(4, 3).to(d)
        with forward_ad.dual_level():
            result = torch.nn.functional.linear(forward_ad.make_dual(x, torch.ones_like(x)), weight)
            return forward_ad.unpack_dual(result).tangent

    check_same(program)
    x, weight = torch.ones(2, 3).to("xla"), torch.ones(4, 3).to("xla")
    assert "aten::linear(" in torch_xla._XLAC._get_xla_tensors_text([torch.nn.functional.linear(x, weight)])


# Sizes of the input, the normalized dimensions, and whether there is a weight.
RMS_NORMS = [
    ((2, 5, 8), (8,), True),
    ((2, 5, 8), (5, 8), True),
    ((8,), (8,), False),
    ((0, 8), (8,), True),
    ((2, 0), (0,), True),
]


def normed(case: tuple[Any, ...], dtype: torch.dtype, d: str, weight_dtype: torch.dtype | None = None) -> Any:
    """Return the operands of an RMS norm, its result, and the sum whose gradients are compared."""
    size, normalized, has_weight = case
    generator = torch.Generator().manual_seed(0)
    wide = dtype if dtype.is_complex else torch.float64
    x = torch.randn(size, generator=generator, dtype=wide).to(dtype)
    operands = [x, torch.randn(normalized, generator=generator, dtype=wide).to(weight_dtype or dtype)][: 1 + has_weight]
    operands = [each.to(d).requires_grad_() for each in operands]
    result = torch.nn.functional.rms_norm(operands[0], normalized, *operands[1:])
    upstream = torch.randn(size, generator=generator, dtype=wide).to(result.dtype).to(d)
    return operands, result, (result * upstream).abs().sum()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
@pytest.mark.parametrize("case", RMS_NORMS, ids=str)
def test_an_rms_norm_has_its_gradients(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    def program(d: str) -> Any:
        operands, result, total = normed(case, dtype, d)
        return result.detach(), torch.autograd.grad(total, operands)

    check_same(program)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("case", RMS_NORMS[:3], ids=str)
def test_gradients_of_an_rms_norm_can_be_differentiated_again(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    def program(d: str) -> Any:
        operands, _, total = normed(case, dtype, d)
        first = torch.autograd.grad(total, operands, create_graph=True)
        return torch.autograd.grad(sum((each.abs() ** 2).sum() for each in first), operands)

    check_same(program)


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.bfloat16, None)], ids=str
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_an_rms_norm_of_two_dtypes_is_that_of_the_cpu(dtypes: tuple[torch.dtype, torch.dtype | None]) -> None:
    def program(d: str) -> Any:
        operands, result, total = normed(RMS_NORMS[0], dtypes[0], d, dtypes[1])
        return result.detach(), torch.autograd.grad(total, operands)

    check_same(program)


def test_the_default_eps_of_a_narrow_rms_norm_is_that_of_float32() -> None:
    check_same(lambda d: torch.nn.functional.rms_norm(torch.full((2, 8), 1e-4, dtype=torch.bfloat16).to(d), (8,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [((7,), None, (2, 8)), ((), None, (2, 8)), ((), None, ()), ((8,), (7,), (2, 8)), ((8,), (2, 8), (2, 8))],
    ids=str,
)
def test_an_rms_norm_of_sizes_that_do_not_fit_is_refused_as_on_the_cpu(
    sizes: tuple[Any, ...], dtype: torch.dtype
) -> None:
    def refusal(d: str) -> str:
        weight = None if sizes[1] is None else torch.ones(sizes[1], dtype=dtype, device=d)
        with pytest.raises(RuntimeError) as caught:
            torch.nn.functional.rms_norm(torch.ones(sizes[2], dtype=dtype, device=d), sizes[0], weight)
        return str(caught.value)

    assert refusal("xla") == refusal("cpu")


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.hessian, torch.func.jacrev], ids=lambda f: f.__name__
)
def test_an_rms_norm_is_transformed_as_on_the_cpu(transform: Callable[..., Any]) -> None:
    def program(d: str) -> Any:
        x, weight = torch.arange(1.0, 9.0).view(2, 4).to(d), torch.arange(4.0).to(d)

        def total(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, (4,), weight).pow(3).sum()

        return transform(total)(x), torch.func.vmap(transform(total))(x)

    check_same(program)


def test_a_tangent_of_an_rms_norm_is_that_of_the_cpu() -> None:
    def program(d: str) -> Any:
        x, weight = torch.arange(1.0, 9.0).view(2, 4).to(d), torch.arange(4.0).to(d)
        with forward_ad.dual_level():
            result = torch.nn.functional.rms_norm(forward_ad.make_dual(x, torch.ones_like(x)), (4,), weight)
            return forward_ad.unpack_dual(result).tangent

    check_same(program)


def test_an_rms_norm_is_one_operation_forward_and_one_backward() -> None:
    norm = torch.nn.RMSNorm(8, device="xla")
    x = torch.ones(2, 8, device="xla", requires_grad=True)
    ones = torch.ones(2, 8, device="xla")
    torch_xla.sync()
    norm(x).backward(ones)
    assert [name_of(operation) for operation in decode(device_at(0).tape.code)[1]] == [
        "aten::_fused_rms_norm",
        "aten::_fused_rms_norm_backward",
    ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16, torch.complex64])
@pytest.mark.parametrize("size", [(2, 3, 8), (3, 8), (8,), (0, 3, 8)])
def test_a_maximum_is_pooled_of_the_dtypes_of_the_cpu(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    found: list[Any] = []
    for device in ("cpu", "xla"):
        try:
            found.append(torch.max_pool1d(torch.ones(size).to(device, dtype), 2).cpu())
        except (RuntimeError, NotImplementedError) as refusal:
            found.append((type(refusal), str(refusal)))
    assert torch.equal(*found) if isinstance(found[0], torch.Tensor) else found[0] == found[1]
