"""Products of rows with the matrix of their group, compared with PyTorch on the CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.rules import apply_rule
from torch_xla._engine.lowering.linear_algebra import grouped_matmul

aten = torch.ops.aten


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 31 + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    # The sums of PyTorch's loop over the groups are added up in another order.
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(got.to(dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_grouped_products_are_those_of_the_cpu_with_gradients(dtype: torch.dtype) -> None:
    ends = torch.tensor([2, 5, 8], dtype=torch.int32)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
    tokens = torch.randn(8, 16, dtype=dtype)
    for experts in (torch.randn(3, 16, 24, dtype=dtype), torch.randn(3, 5, 16, dtype=dtype).mT):
        found = []
        for device in ("cpu", "xla"):
            left, right = (t.detach().to(device).requires_grad_() for t in (tokens, experts))
            product = F.grouped_mm(left, right, offs=ends.to(device))
            found.append([product.detach().cpu()])
            if experts.is_contiguous():
                product.float().square().sum().backward()
                assert left.grad is not None and right.grad is not None
                found[-1] += [left.grad.cpu(), right.grad.cpu()]
        torch.testing.assert_close(found[1], found[0], **tolerance)


def of_transformers() -> Any:
    """The operators that Transformers defines for grouped products where Dynamo traces them."""
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return torch.ops.transformers

    def product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        starts = [0, *offs.tolist()[:-1]]
        rows = [input[start:end] @ each for start, end, each in zip(starts, offs.tolist(), weight, strict=True)]
        return torch.cat([*rows, input.new_zeros(len(input) - int(offs[-1]), weight.shape[2])])

    def backward(
        input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        starts = [0, *offs.tolist()[:-1]]
        groups = [slice(start, end) for start, end in zip(starts, offs.tolist(), strict=True)]
        return product(grad_output, weight.mT, offs), torch.stack([input[g].T @ grad_output[g] for g in groups])

    name = "transformers::grouped_mm_fallback"
    forward = torch.library.custom_op(name, product, mutates_args=())
    forward.register_fake(lambda input, weight, offs: input.new_empty(len(input), weight.shape[2]))
    back = torch.library.custom_op(f"{name}_backward", backward, mutates_args=())
    back.register_fake(lambda input, weight, offs, grad_output: (torch.empty_like(input), torch.empty_like(weight)))

    def gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *torch.ops.transformers.grouped_mm_fallback_backward(*ctx.saved_tensors, grad), None

    forward.register_autograd(gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return torch.ops.transformers


@pytest.mark.parametrize("compiled", [True, False])
def test_grouped_products_of_transformers_are_one_program_whatever_the_groups(compiled: bool) -> None:
    operators = of_transformers()

    def experts(tokens: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return operators.grouped_mm_fallback(tokens, weight, ends).tanh()  # type: ignore[no-any-return]

    called = torch.compile(experts, backend="openxla", fullgraph=True) if compiled else experts
    tokens, weight = torch.randn(8, 16), torch.randn(3, 16, 24)
    for round, groups in enumerate(([2, 5, 8], [0, 8, 8], [1, 1, 6])):
        ends = torch.tensor(groups, dtype=torch.int32)
        found = []
        for device, function in (("cpu", experts), ("xla", called)):
            left, right, cuts = (t.detach().to(device) for t in (tokens, weight, ends))
            before = met.metric_data("CompileTime")
            result = function(left.requires_grad_(), right.requires_grad_(), cuts)
            result.square().sum().backward()
            assert left.grad is not None and right.grad is not None
            torch_xla.sync()
            if round and device == "xla":
                assert met.metric_data("CompileTime")[0] == before[0]  # type: ignore[index]
            found.append([result.detach().cpu(), left.grad.cpu(), right.grad.cpu()])
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_grouped_products_of_other_dtypes_are_refused_as_on_the_cpu(other: torch.dtype) -> None:
    ends = torch.tensor([2, 5, 8], dtype=torch.int32, device="xla")
    left, right = torch.randn(8, 16, device="xla").bfloat16(), torch.randn(3, 16, 24, device="xla").to(other)
    with pytest.raises(RuntimeError):
        F.grouped_mm(left, right, offs=ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_grouped_products_share_one_dimension_between_the_groups(dtype: torch.dtype) -> None:
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((24, 16), (3, 16, 32)),
        ((3, 24, 16), (16, 24)),
        ((32, 24), (24, 16)),
    ]
    for left, right in shapes:
        operands = values(*left, dtype=dtype), values(*right, dtype=dtype), ends
        close(apply_rule(aten._grouped_mm.default, *operands), aten._grouped_mm.default(*operands), dtype)
    batches = values(3, 8, 16, dtype=dtype), values(3, 16, 8, dtype=dtype)
    close(apply_rule(aten._grouped_mm.default, *batches), aten._grouped_mm.default(*batches), dtype)
    rows = apply_rule(aten._grouped_mm.default, values(32, 16), values(3, 16, 8), ends)
    expected = aten._grouped_mm.default(values(32, 16), values(3, 16, 8), ends)
    torch.testing.assert_close(rows[:24], expected[:24], rtol=1e-5, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(0, 70), st.sampled_from([1, 5, 16]))
def test_groups_of_any_size_are_multiplied_by_their_matrix(sizes: list[int], behind: int, inner: int) -> None:
    ends = np.cumsum(sizes).astype(np.int32)
    rows, columns, groups = int(ends[-1]) + behind, 7, len(sizes)
    left, right = np.random.default_rng(0).standard_normal((2, max(rows, 1), inner)).astype(np.float32)[:, :rows]
    if behind:
        right[ends[-1] :] = np.inf  # what belongs to no group is added nowhere
    matrices = np.random.default_rng(1).standard_normal((groups, inner, columns)).astype(np.float32)
    products, sums = np.zeros((rows, columns), np.float32), np.zeros((groups, inner, inner), np.float32)
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        products[start:end] = left[start:end] @ matrices[group]
        sums[group] = left[start:end].T @ right[start:end]
    product = jax.jit(grouped_matmul.grouped_mm)
    by_row = product(jnp.asarray(left), jnp.asarray(matrices), jnp.asarray(ends))
    np.testing.assert_allclose(by_row, products, rtol=1e-4, atol=1e-4)
    by_group = product(jnp.asarray(left).T, jnp.asarray(right), jnp.asarray(ends))
    np.testing.assert_allclose(by_group, sums, rtol=1e-4, atol=1e-4)
