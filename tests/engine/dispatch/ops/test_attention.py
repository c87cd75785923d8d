"""Attention as PyTorch calls it: masks and heads of every form, and differentiated twice.

It has no second derivative on the CPU, except in its composition.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.support.twins import check_same, outcome


def values(*size: int, d: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(d)


# Sizes of query, key and value, and whether heads of keys are shared.
FORMS = [
    ((6, 8), (5, 8), (5, 8), False),
    ((4, 6, 8), (4, 5, 8), (4, 5, 3), False),
    ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 8), False),
    ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 3), False),
    ((2, 4, 6, 8), (1, 4, 5, 8), (1, 4, 5, 8), False),
    ((2, 8, 6, 8), (2, 2, 5, 8), (2, 2, 5, 8), True),
    ((2, 3, 4, 6, 8), (2, 3, 4, 5, 8), (2, 3, 4, 5, 8), False),
]


@pytest.mark.parametrize("mask", ["none", "causal", "some", "all of a row", "added"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_takes_every_mask(form: tuple[Any, ...], mask: str) -> None:
    sees = torch.arange(30).reshape(6, 5) % 3 > 0
    masks = {"some": sees, "all of a row": sees & (torch.arange(6) != 2)[:, None], "added": sees * 0.7}

    def program(d: str) -> Any:
        *sizes, shared = form
        operands = [values(*size, d=d, seed=seed).requires_grad_() for seed, size in enumerate(sizes)]
        given = masks[mask].to(d) if mask in masks else None
        result = scaled_dot_product_attention(*operands, attn_mask=given, is_causal=mask == "causal", enable_gqa=shared)
        return [result.detach(), *torch.autograd.grad((result * result.detach().cos()).sum(), operands)]

    check_same(program, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize("dims", [3, 4])
def test_a_mask_of_another_dtype_is_refused(dims: int, dtype: torch.dtype) -> None:
    for d in ("cpu", "xla"):
        operand = values(2, 2, 5, 8, d=d)
        operand = operand[0] if dims == 3 else operand
        with pytest.raises(RuntimeError, match="Expected attn_mask dtype to be bool or float or to match query dtype"):
            scaled_dot_product_attention(*[operand] * 3, attn_mask=torch.ones(5, 5, dtype=dtype, device=d))


def test_heads_that_share_keys_are_one_operator_that_can_be_differentiated_twice() -> None:
    def program(d: str) -> Any:
        query, key, value = (values(2, heads, 5, 4, d=d, seed=heads).requires_grad_() for heads in (6, 2, 2))
        with sdpa_kernel(SDPBackend.MATH) if d == "cpu" else nullcontext():
            result = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        if d == "xla":
            assert "FusedAttention" in type(result.grad_fn).__name__
        first = torch.autograd.grad((result * result.detach().cos()).sum(), (query, key, value), create_graph=True)
        second = torch.autograd.grad(sum((x * x).sum() for x in first), (query, key, value))
        return [x.detach() for x in (*first, *second)]

    check_same(program, strides=False, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("is_causal", "masked"), [(False, False), (True, False), (False, True)])
def test_second_derivatives_are_those_of_the_composition(is_causal: bool, masked: bool) -> None:
    def program(d: str) -> Any:
        query, key, value = (values(2, 3, size, 4, d=d, seed=size).requires_grad_() for size in (5, 7, 7))
        operands = [query, key, value] + ([values(5, 7, d=d).requires_grad_()] if masked else [])
        with sdpa_kernel(SDPBackend.MATH) if d == "cpu" else nullcontext():
            # The key owes something to the query: only its own part of the gradient may be counted.
            dependent = key + query.sum() / 10
            result = scaled_dot_product_attention(query, dependent, *operands[2:], is_causal=is_causal)
        first = torch.autograd.grad((result * result.detach().cos()).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((x * x).sum() for x in first), operands)
        return [x.detach() for x in (*first, *second)]

    check_same(program, strides=False, rtol=1e-4, atol=1e-4)


def test_dropout_drops_the_same_in_the_second_derivative() -> None:
    query, key, value = (values(2, 3, size, 4, d="xla", seed=size) for size in (5, 7, 8))
    value = value[..., :7, :]

    def gradient(x: torch.Tensor, create_graph: bool) -> torch.Tensor:
        torch.manual_seed(3)
        result = scaled_dot_product_attention(x, key, value, dropout_p=0.4)
        return torch.autograd.grad(result.sum(), x, create_graph=create_graph)[0]

    def squares(x: torch.Tensor) -> torch.Tensor:
        return gradient(x.detach().requires_grad_(), False).square().sum()

    x = query.requires_grad_()
    first = gradient(x, True)
    torch.testing.assert_close(first, gradient(x, False))
    second = torch.autograd.grad(first.square().sum(), x)[0]
    step = values(*query.shape, d="xla", seed=1)
    numerical = (squares(x + 1e-2 * step) - squares(x - 1e-2 * step)) / 2e-2
    torch.testing.assert_close(numerical, (second * step).sum(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_second_derivatives_with_dropout_keep_their_dtype(dtype: torch.dtype) -> None:
    operands = [values(2, 3, size, 4, d="xla").to(dtype).requires_grad_() for size in (5, 7, 7)]
    result = scaled_dot_product_attention(*operands, dropout_p=0.5, is_causal=True)
    firsts = torch.autograd.grad(result.sum(), operands, create_graph=True)
    seconds = torch.autograd.grad(sum((x * x).sum() for x in firsts), operands)
    assert {x.dtype for x in (*firsts, *seconds)} == {dtype}
    assert all(x.isfinite().all() for x in seconds)


@pytest.mark.skipif(torch.__version__ >= (2, 14), reason="PyTorch refuses every mask beside the causal one")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mask", ["seen", "added"])
def test_a_mask_beside_the_causal_one_counts_as_well(mask: str, shared: bool) -> None:
    sees = torch.arange(25).reshape(5, 5) % 3 > 0  # row 0 sees only what the causal mask hides

    def program(d: str) -> Any:
        heads = 2 if shared else 4
        operands = [values(2, n, 5, 8, d=d, seed=i).requires_grad_() for i, n in enumerate((4, heads, heads))]
        given = (sees if mask == "seen" else sees * 0.7).to(d)
        result = scaled_dot_product_attention(*operands, attn_mask=given, is_causal=True, enable_gqa=shared)
        return [result.detach(), *torch.autograd.grad((result * result.detach().cos()).sum(), operands)]

    check_same(program, rtol=1e-4, atol=1e-5)


def test_a_mask_beside_the_causal_one_is_refused_where_the_cpu_refuses_it() -> None:
    for d in ("cpu", "xla"):
        x, mask = values(2, 3, 5, 8, d=d), torch.zeros(5, 5, device=d)
        for operands, given, dropout_p in (
            ([x[0]] * 3, mask, 0.0),
            ([x, x, x[..., :4]], mask, 0.0),
            ([x] * 3, mask, 0.5),
            ([x] * 3, mask.expand(3, 5, 5), 0.0),
            ([x] * 3, mask.requires_grad_(), 0.0),
        ):
            with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
                scaled_dot_product_attention(*operands, attn_mask=given, dropout_p=dropout_p, is_causal=True)


@pytest.mark.parametrize("size", [(), (1,), (5,)], ids=str)
def test_a_mask_of_fewer_dimensions_beside_the_causal_one_is_refused_as_on_the_cpu(size: tuple[int, ...]) -> None:
    for operands, dropout_p in (((2, 3, 5, 8), 0.0), ((2, 3, 5, 8), 0.5), ((3, 5, 8), 0.0)):
        for mask in (torch.zeros(size), torch.ones(size, dtype=torch.bool), torch.zeros(size, requires_grad=True)):

            def program(d: str, operands: Any = operands, dropout_p: float = dropout_p, mask: Any = mask) -> None:
                x = values(*operands, d=d)
                given = mask.detach().to(d).requires_grad_(mask.requires_grad)
                scaled_dot_product_attention(x, x, x, given, dropout_p, is_causal=True)

            theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
            assert theirs is not None and type(ours) is type(theirs) and str(ours) == str(theirs)


def test_a_mask_that_does_not_fit_is_refused_as_on_the_cpu() -> None:
    for size in ((5, 4), (4, 1, 5), (2, 1, 5, 7), (1, 2, 3, 5, 5)):

        def program(d: str, size: tuple[int, ...] = size) -> None:
            x = values(2, 3, 5, 8, d=d)
            scaled_dot_product_attention(x, x, x, torch.zeros(size, device=d))

        theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
        assert theirs is not None and type(ours) is type(theirs), size


def test_operands_that_are_no_matrices_or_differ_in_dtype_are_refused() -> None:
    for d in ("cpu", "xla"):
        x = values(3, 4, d=d)
        for operands in ([x[0, 0]] * 3, [x[0]] * 3, [x, x[0], x], [x, x, x[0, 0]]):
            with pytest.raises(RuntimeError, match=r"query, key, and value to all be +at least 2 dimensional"):
                scaled_dot_product_attention(*operands)
        with pytest.raises(RuntimeError, match="query, key, and value to have the same dtype"):
            scaled_dot_product_attention(x, x.double(), x)


@pytest.mark.parametrize("masked", [False, True])
def test_a_result_without_a_gradient_gives_none_to_its_operands(masked: bool) -> None:
    found = {}
    for d in ("cpu", "xla"):
        operands = [torch.ones(1, 2, 3, 4, device=d, requires_grad=True) for _ in range(3)]
        mask = torch.ones(3, 3, device=d, requires_grad=True) if masked else None
        result = torch.nn.functional.scaled_dot_product_attention(*operands, attn_mask=mask)
        without: Any = torch._C._functions.UndefinedGrad()(result)  # type: ignore[attr-defined]
        grads = torch.autograd.grad(without.sum(), [*operands, *([mask] * masked)], allow_unused=True)
        found[d] = [grad is None or not grad.any() for grad in grads]
    assert found["xla"] == found["cpu"] == [True] * (3 + masked)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_without_dropout_attention_draws_nothing(is_causal: bool, is_compiled: bool) -> None:
    def attended(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p, is_causal=is_causal)

    called = torch.compile(attended, backend="openxla", fullgraph=True) if is_compiled else attended
    x = torch.randn(1, 2, 4, 8)
    on_xla = x.to("xla").requires_grad_()
    before = torch.xla.get_rng_state()
    (gradient,) = torch.autograd.grad(called(on_xla, 0.0).sum(), on_xla)
    on_cpu = x.requires_grad_()
    (expected,) = torch.autograd.grad(attended(on_cpu, 0.0).sum(), on_cpu)
    torch.testing.assert_close(gradient.cpu(), expected)
    assert torch.equal(torch.xla.get_rng_state(), before)
    assert not torch.equal(called(on_xla, 0.5), called(on_xla, 0.5))
    assert not torch.equal(torch.xla.get_rng_state(), before)
