"""Products of 8-bit floats with scales: of a matrix, of rows, and of the rows of a grouped product."""

from collections.abc import Sequence

import jax
import torch
from jax import lax

from ..machinery.opmath import FLOAT32, widened
from ..machinery.registry import lowers
from .grouped_matmul import grouped_mm

aten = torch.ops.aten

# Of `torch.nn.functional.ScalingType`.
_ROWWISE = 1


@lowers(aten._scaled_mm_v2.default)
def scaled_mm_v2(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: list[jax.Array],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[jax.Array],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: jax.Array | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> jax.Array:
    # One scale for a matrix, or one for each row of `self` and column of `mat2`. PyTorch's description of the operator
    # refuses others, in the layouts of NVIDIA's kernels.
    row = scale_a[0].reshape(-1, 1) if recipe_a[0] == _ROWWISE else scale_a[0].reshape(())
    column = scale_b[0].reshape(1, -1) if recipe_b[0] == _ROWWISE else scale_b[0].reshape(())
    result = lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=FLOAT32) * row * column
    return result if bias is None else result + widened(bias)


@lowers(aten._scaled_grouped_mm.default)
def scaled_grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale_result: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    # Each row of the first and each column of the second operand has its scale.
    if scale_a.dtype != FLOAT32:  # PyTorch's description also lets through scales of blocks, in a layout of NVIDIA's
        raise ValueError(
            f"_scaled_grouped_mm() takes a scale of float32 for each row on xla; got scales of {scale_a.dtype}, which "
            "are of blocks. Multiply the operands by their scales and call grouped_mm()."
        )
    left, right = self.astype(FLOAT32), mat2.astype(FLOAT32)
    if self.ndim == 2 and mat2.ndim == 2 and offs is not None:  # each group its own, since all share the rows
        scales = scale_a.reshape(len(offs), -1, 1), scale_b.reshape(len(offs), 1, -1)
        return grouped_mm(left, right, offs) * scales[0] * scales[1]
    return grouped_mm(left * scale_a[..., None], right * scale_b[..., None, :], offs)


@lowers(aten._scaled_grouped_mm_v2.default)
def scaled_grouped_mm_v2(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: list[jax.Array],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[jax.Array],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> jax.Array:
    if len(contraction_dim) not in (0, 2) or any(
        dim not in (last, last + operand.ndim)
        for dim, last, operand in zip(contraction_dim, (-1, -2), (self, mat2), strict=False)
    ):
        raise ValueError(f"scaled_grouped_mm() contracts the dimensions (-1, -2); got {tuple(contraction_dim)}.")
    if len(scale_a) != len(recipe_a) or len(scale_b) != len(recipe_b):
        raise ValueError(
            f"scaled_grouped_mm() takes a recipe for each scale; got {len(scale_a)} scales with {len(recipe_a)} "
            f"recipes of mat_a, {len(scale_b)} with {len(recipe_b)} of mat_b."
        )
    if [*recipe_a, *recipe_b] != [_ROWWISE, _ROWWISE] or any(swizzle_a) or any(swizzle_b):
        raise ValueError(
            f"scaled_grouped_mm() takes scales of ScalingType.RowWise without a swizzle on xla; got the recipes "
            f"{list(recipe_a)} and {list(recipe_b)}. Multiply the operands by their scales and call grouped_mm()."
        )
    return scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs)
