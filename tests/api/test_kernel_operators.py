"""The kernels of `torch.ops.xla` compute the same on both devices, under `torch.compile`, and have gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as jax_kernel

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental import custom_kernel, splash_attention, stablehlo_custom_call
from torch_xla.experimental.splash_attention import SplashAttentionConfig

xla = torch.ops.xla
Function = Callable[..., torch.Tensor]


def on_xla(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [each.to("xla").requires_grad_(each.is_floating_point()) for each in tensors]


def result_and_gradients(function: Function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*inputs)
    result.square().sum().backward()
    return [result.detach().cpu(), *(each.grad.cpu() for each in inputs if each.grad is not None)]


def compare(ours: Function, theirs: Function, *inputs: torch.Tensor, compiled: bool = False) -> None:
    """On `xla` and on the CPU, results and gradients; and that nothing of it ran on the CPU or one by one."""
    metrics.clear_counters()
    run = torch.compile(ours, backend="openxla", fullgraph=True) if compiled else ours
    found = result_and_gradients(run, on_xla(*inputs))
    expected = result_and_gradients(theirs, [each.clone().requires_grad_(each.is_floating_point()) for each in inputs])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert metrics.executed_fallback_ops() == [] and not metrics.counter_value("DynamoGraphByOperator")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    scores = (q @ k.mT) * scale
    return scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -1e30).softmax(-1) @ v


@pytest.mark.parametrize("compiled", [False, True])
def test_flash_attention(compiled: bool) -> None:
    q, k, v = (torch.randn(2, 4, 16, 8) for _ in range(3))
    compare(lambda *qkv: xla.flash_attention(*qkv, True), attend, q, k, v, compiled=compiled)
    compare(
        lambda *qkv: custom_kernel.flash_attention(*qkv, True, sm_scale=0.5),
        lambda *qkv: attend(*qkv, 0.5), q, k, v, compiled=compiled,
    )  # fmt: skip
    torch.testing.assert_close(xla.flash_attention(q, k, v, True), attend(q, k, v), rtol=1e-4, atol=1e-4)


def test_the_forward_pass_tells_its_sums() -> None:
    q, k, v = (torch.randn(1, 2, 1024, 8) for _ in range(3))
    settings = (q, k, v, False, None, None, 0.5, None, None, None, [True] * 3)
    found = [each.cpu() for each in xla.fa_custom_forward(*(each.to("xla") for each in (q, k, v)), *settings[3:])]
    scores = q @ k.mT * 0.5
    torch.testing.assert_close(found[0], scores.softmax(-1) @ v, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[5], scores.amax(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[4], (scores - found[5][..., None]).exp().sum(-1), rtol=1e-4, atol=1e-3)
    described = custom_kernel.fa_custom_forward_fake(*(each.to("meta") for each in (q, k, v)), *settings[3:])
    assert [each.shape for each in described] == [each.shape for each in found]


@pytest.mark.parametrize("compiled", [False, True])
def test_splash_attention(compiled: bool) -> None:
    q, k, v = torch.randn(2, 4, 12, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    segments = (torch.arange(12) // 5)[None].expand(2, 12).int().contiguous()
    config = SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=3).to_json()

    def by_hand(q: Any, k: Any, v: Any, segments: Any) -> torch.Tensor:
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        place = torch.arange(12)
        apart = place[:, None] - place[None]
        seen = (apart >= 0) & (apart <= 3) & (segments[0][:, None] == segments[0][None])
        return ((q @ k.mT / 2).tanh() * 2).masked_fill(~seen, -1e30).softmax(-1) @ v

    compare(
        lambda q, k, v, s: splash_attention.splash_attention(q, k, v, config, s, True, 2.0),
        by_hand, q, k, v, segments, compiled=compiled,
    )  # fmt: skip
    with pytest.raises(ValueError, match="a divisor of the heads"):
        splash_attention.splash_attention(q, q[:, :3], q[:, :3], config)
    with pytest.raises(ValueError, match="unknown field 'blocks'"):
        SplashAttentionConfig.from_json('{"blocks": 1}')


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 4, "soft_cap": 2.0}, {"k_scale": 0.5, "v_scale": 2.0}],
    ids=["", "window", "scaled"],
)
def test_ragged_attention_is_that_of_jax(options: dict[str, Any]) -> None:
    q, pages = torch.randn(12, 4, 8), torch.randn(10, 4, 4, 8)
    lengths, starts = torch.tensor([9, 3, 8, 1]).int(), torch.tensor([0, 4, 5, 10, 10]).int()
    inputs = (q, pages, lengths, torch.randint(0, 10, (4, 3)).int(), starts, torch.tensor([3]).int())
    arrays = [jnp.asarray(each.numpy()) for each in inputs]
    expected = jax_kernel.ref_ragged_paged_attention(*arrays, sm_scale=0.3, **options)
    found = custom_kernel.ragged_paged_attention(*(each.to("xla") for each in inputs), sm_scale=0.3, **options).cpu()
    torch.testing.assert_close(found[:10], torch.from_numpy(np.array(expected)), rtol=1e-4, atol=1e-4)
    assert not found[10:].any()


def test_several_queries_to_pages() -> None:
    q, keys, values = torch.randn(2, 3, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    lengths, pages, counted = torch.tensor([4, 3]), torch.tensor([[0, 1], [5, 2]]), torch.tensor([3, 2])
    inputs = (q, keys, values, lengths, pages, counted)
    found = custom_kernel.multi_queries_paged_attention(*(each.to("xla") for each in inputs), 1, 1).cpu()
    for row in range(2):
        key, value = (p[:, pages[row]].reshape(2, -1, 8).repeat_interleave(2, 0) for p in (keys, values))
        for query in range(counted[row]):
            seen = lengths[row] - counted[row] + query + 1
            weights = torch.einsum("hd,hkd->hk", q[row, query], key[:, :seen]).softmax(-1)
            expected = torch.einsum("hk,hkd->hd", weights, value[:, :seen])
            torch.testing.assert_close(found[row, query], expected, rtol=1e-4, atol=1e-5)


def by_groups(lhs: torch.Tensor, rhs: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts = [rows @ matrix for rows, matrix in zip(lhs.split(sizes.tolist()), rhs, strict=True)]
    return torch.cat(parts)


@pytest.mark.parametrize("compiled", [False, True])
def test_products_of_groups(compiled: bool) -> None:
    lhs, rhs, sizes = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor([3, 0, 4]).int()
    compare(xla.gmm, by_groups, lhs, rhs, sizes, compiled=compiled)
    part = xla.gmm(*(each.to("xla") for each in (lhs, rhs[1:], sizes)), group_offset=torch.tensor([1]).to("xla")).cpu()
    whole = by_groups(lhs, rhs, sizes)
    whole[:3] = 0
    torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-5)
    inputs = on_xla(lhs, rhs)
    custom_kernel.GMM.apply(*inputs, sizes.to("xla")).square().sum().backward()
    expected = result_and_gradients(lambda *t: by_groups(*t, sizes), [lhs.requires_grad_(), rhs.requires_grad_()])
    torch.testing.assert_close([each.grad.cpu() for each in inputs], expected[1:], rtol=1e-4, atol=1e-4)


def test_layers_as_operators() -> None:
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5)
    compare(xla.einsum_linear_forward, torch.nn.functional.linear, x, weight, bias)
    compare(lambda x, w: xla.einsum_linear_forward(x, w, None), torch.nn.functional.linear, x, weight)
    compare(lambda x: xla.max_pool2d_forward(x, [2, 2]), lambda x: torch.max_pool2d(x, 2), torch.randn(1, 2, 6, 6))


def test_places_sizes_and_notes() -> None:
    x, y = torch.randn(2, 1, 3), torch.zeros(5, 4)
    compare(lambda x: xla.place_to_device(xla.place_to_host(x * 2)), lambda x: x * 2, x, compiled=True)
    compare(lambda x, y: xla.dynamic_expand(x, (2, 1, 3), y, 1, 1), lambda x, y: x.expand(2, 4, 3), x, y.int())
    torch.testing.assert_close(xla.dynamic_view(x.to("xla"), (1,), x.to("xla"), 2, 0, 2.0).cpu(), x.reshape(6))
    noted = xla.write_mlir_debuginfo(x.to("xla"), "a note") + 1
    assert "a note" in torch_xla._XLAC._get_stablehlo([noted], "", [], True).decode("latin1")
    torch.testing.assert_close(noted.cpu(), x + 1)


def test_a_custom_call_is_written_and_refused_by_a_platform_that_does_not_know_it() -> None:
    x = torch.ones(4, device="xla")
    y = stablehlo_custom_call.stablehlo_custom_call((x,), "mine", [(2,)], [torch.float32], True, "c", 2, {"k": "v"})
    text = torch_xla._XLAC._get_xla_tensors_hlo([y])
    for part in ('custom_call_target="mine"', "custom_call_has_side_effect=true", 'frontend_attributes={k="v"}'):
        assert part in text
    with pytest.raises(RuntimeError, match="No registered implementation for untyped custom call to mine"):
        y.cpu()


def add_arrays(x: Any, y: Any) -> Any:
    def add(x: Any, y: Any, total: Any) -> None:
        total[...] = x[...] + y[...]

    return pallas.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def test_a_pallas_kernel_is_lowered_for_a_tpu_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_kernel, "_MOST_PAYLOADS", 2)
    x = torch.ones(8, 128, device="xla")
    metrics.clear_counters()
    payload, tensors = custom_kernel.trace_pallas(add_arrays, x, x, use_cache=True)
    assert payload is not None and "custom_call_config" in payload and len(tensors) == 2
    assert custom_kernel.trace_pallas(add_arrays, x, x, use_cache=True)[0] == payload
    assert metrics.counter_value("trace_pallas_cache_hit") == 1
    for size in range(1, 5):
        y = torch.ones(8 * size, 128, device="xla")
        custom_kernel.trace_pallas(add_arrays, y, y, use_cache=True)
    assert len(custom_kernel.trace_pallas_arg_to_payload) <= 2
    (result,) = torch_xla._XLAC._xla_tpu_custom_call(tensors, payload, [(8, 128)], [torch.float32])
    assert 'custom_call_target="tpu_custom_call"' in torch_xla._XLAC._get_xla_tensors_hlo([result])
