"""Kernels by name compute what their definition says, and so do their gradients."""

from typing import Any

import jax
import pytest
import torch
from jax.experimental import pallas

from torch_xla.experimental.custom_kernel import (
    flash_attention,
    gmm,
    gmm_backward,
    make_kernel_from_pallas,
    paged_attention,
    tgmm,
)


def attention(q: Any, k: Any, v: Any, causal: bool, segments: Any, scale: float, ab: Any) -> torch.Tensor:
    scores = q @ k.mT
    if ab is not None:
        scores = scores + ab
    scores = scores * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), -1e30)
    if segments is not None:
        scores = scores.masked_fill(segments[0][:, None, :, None] != segments[1][:, None, None, :], -1e30)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("length", [12, 1024])
@pytest.mark.parametrize(
    ("causal", "segmented", "biased"), [(False, False, False), (True, True, False), (True, False, True)]
)
def test_attention_and_its_gradients(length: int, causal: bool, segmented: bool, biased: bool) -> None:
    inputs = [torch.randn(1, 2, length, 8) for _ in range(3)]
    ab = torch.randn(1, 2, length, length) if biased else None
    segments = (torch.arange(length)[None] // 5,) * 2 if segmented else None
    found = []
    for device in ("cpu", "xla"):
        q, k, v = (each.clone().to(device).requires_grad_() for each in inputs)
        if device == "cpu":
            result = attention(q, k, v, causal, segments, 0.3, ab)
        else:
            ids = [None, None] if segments is None else [each.to(device) for each in segments]
            result = flash_attention(q, k, v, causal, *ids, 0.3, ab=None if ab is None else ab.to(device))
        result.square().sum().backward()
        found.append([each.detach().cpu() for each in (result, q.grad, k.grad, v.grad)])
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_attention_refuses_sizes_that_do_not_fit() -> None:
    q = torch.ones(1, 2, 4, 8, device="xla")
    with pytest.raises(ValueError, match=r"got \[1, 2, 4, 8\], \[1, 3, 4, 8\] and \[1, 3, 4, 8\]"):
        flash_attention(q, torch.ones(1, 3, 4, 8, device="xla"), torch.ones(1, 3, 4, 8, device="xla"))
    with pytest.raises(ValueError, match="segment ids of both queries and keys, or of neither"):
        flash_attention(q, q, q, q_segment_ids=torch.zeros(1, 4, device="xla"))


@pytest.mark.parametrize("cap", [None, 2.0])
def test_attention_to_pages(cap: float | None) -> None:
    q, keys, values = torch.randn(3, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    lengths, indices = torch.tensor([1, 4, 3]), torch.tensor([[0, 1], [5, 2], [3, 3]])
    result = paged_attention(*(each.to("xla") for each in (q, keys, values, lengths, indices)), 1, None, cap)
    for row in range(3):
        own = [pages[:, indices[row]].reshape(2, -1, 8)[:, : lengths[row]] for pages in (keys, values)]
        key, value = (each.repeat_interleave(2, 0) for each in own)
        scores = torch.einsum("hd,hkd->hk", q[row], key)
        scores = scores if cap is None else (scores / cap).tanh() * cap
        expected = torch.einsum("hk,hkd->hd", scores.softmax(-1), value)
        torch.testing.assert_close(result[row].cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[3, 0, 4], [7, 0, 0], [2, 2, 1]])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_groups(sizes: list[int], transposed: bool) -> None:
    lhs, rhs, counts = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor(sizes, dtype=torch.int32)
    given = (rhs.mT.contiguous() if transposed else rhs).to("xla").requires_grad_()
    ours = lhs.to("xla").requires_grad_()
    result = gmm(ours, given, counts.to("xla"), transpose_rhs=transposed)
    expected, sums, start = torch.zeros(7, 5), torch.zeros(3, 4, 5), 0
    for group, size in enumerate(sizes):
        rows = slice(start, start + size)
        expected[rows] = lhs[rows] @ rhs[group]
        sums[group] = lhs[rows].t() @ torch.ones(size, 5)
        start += size
    torch.testing.assert_close(result.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    torch.testing.assert_close((given.grad.mT if transposed else given.grad).cpu(), sums, rtol=1e-4, atol=1e-5)
    grad = torch.ones(7, 5, device="xla")
    found = tgmm(lhs.t().to("xla"), grad, counts.to("xla"))
    torch.testing.assert_close(found.cpu(), sums, rtol=1e-4, atol=1e-5)
    if not transposed:
        by_hand = gmm_backward(grad, ours.detach(), given.detach(), counts.to("xla"))
        torch.testing.assert_close(by_hand[0].cpu(), ours.grad.cpu(), rtol=1e-4, atol=1e-5)


def scaled(x: Any, y: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, out: Any) -> None:
        out[...] = x_ref[...] * 2 + y_ref[...]

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def test_a_kernel_in_pallas_is_interpreted_on_the_cpu_and_says_so() -> None:
    kernel = make_kernel_from_pallas(scaled, lambda x, y: [(x.shape, x.dtype)])
    x, y = torch.randn(8, 128), torch.randn(8, 128)
    with pytest.warns(UserWarning, match="the Pallas kernel scaled is interpreted on the CPU"):
        result = kernel(x.to("xla"), y.to("xla"))
    torch.testing.assert_close(result.cpu(), x * 2 + y)
    wrong = make_kernel_from_pallas(scaled, lambda x, y: [(x.shape, torch.int32)])
    with (
        pytest.warns(UserWarning),
        pytest.raises(ValueError, match="the kernel scaled returned .* output_shape_dtype_fn gives"),
    ):
        wrong(x.to("xla"), y.to("xla"))
