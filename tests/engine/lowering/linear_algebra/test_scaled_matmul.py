"""Products of 8-bit floats with scales, beside the CPU where it has them, and beside the formula."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

import torch_xla.debug.metrics as met
from tests.support.ways_to_run import WAYS, made_to_run

ScalingType = F.ScalingType
E4M3 = torch.float8_e4m3fn


def values(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size) * 7 + len(size)))


def scales(*size: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(sum(size) + 1)) + 0.5


def columns(*size: int) -> Tensor:
    """A matrix, or several, in column-major order."""
    return values(*size).mT.contiguous().to(E4M3).mT


RECIPES = {
    "of matrices": (ScalingType.TensorWise, scales(1), ScalingType.TensorWise, scales(1) * 2),
    "of rows": (ScalingType.RowWise, scales(16, 1), ScalingType.RowWise, scales(1, 32)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scaled_product_is_that_of_the_cpu(recipe: str, dtype: torch.dtype, way: str) -> None:
    kind_a, scale_a, kind_b, scale_b = RECIPES[recipe]
    a, b, bias = values(16, 48).to(E4M3), columns(48, 32), values(32).to(torch.bfloat16)

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor) -> Any:
        given = {"bias": bias} if dtype is torch.bfloat16 else {}
        return F.scaled_mm(a, b, scale_a, kind_a, scale_b, kind_b, output_dtype=dtype, **given)

    expected = product(a, b, scale_a, scale_b, bias)
    met.clear_counters()
    with made_to_run(way, product) as run:
        found = run(*(each.to("xla") for each in (a, b, scale_a, scale_b, bias)))
    assert found.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)
    assert not met.executed_fallback_ops()


ENDS = torch.tensor([8, 16, 32], dtype=torch.int32)
# Operands of each layout, the scales of rows and columns, and the ends of the groups.
LAYOUTS: dict[str, tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]] = {
    "rows by group": (values(32, 48).to(E4M3), columns(3, 48, 16), scales(32), scales(3, 16), ENDS),
    "columns by group": (values(3, 16, 48).to(E4M3), columns(48, 32), scales(3, 16), scales(32), ENDS),
    "sums by group": (values(16, 32).to(E4M3), columns(32, 48), scales(3 * 16), scales(3 * 48), ENDS),
    "a batch": (values(3, 16, 48).to(E4M3), columns(3, 48, 32), scales(3, 16), scales(3, 32), None),
}


def formula(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, ends: Tensor | None) -> Tensor:
    """In float64, group by group."""
    a, b, scale_a, scale_b = (each.double() for each in (a, b, scale_a, scale_b))
    if ends is None:
        return (a * scale_a[..., None]) @ (b * scale_b[:, None])
    parts, first = [], 0
    for group, end in enumerate(ends.tolist()):
        part = slice(first, end)
        if a.dim() == b.dim() == 2:
            own = scale_a.view(3, -1, 1)[group], scale_b.view(3, 1, -1)[group]
            parts.append((a[:, part] @ b[part]) * own[0] * own[1])
        elif a.dim() == 2:
            parts.append((a[part] * scale_a[part, None]) @ (b[group] * scale_b[group]))
        else:
            parts.append((a[group] * scale_a[group, :, None]) @ (b[:, part] * scale_b[part]))
        first = end
    if a.dim() == b.dim() == 2:
        return torch.stack(parts)
    return torch.cat(parts, 0 if a.dim() == 2 else 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scaled_product_by_group_is_the_formula(layout: str, way: str) -> None:
    *operands, ends = LAYOUTS[layout]
    given = [each.to("xla") for each in (*operands, *([] if ends is None else [ends]))]

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None = None) -> Any:
        return F.scaled_grouped_mm(a, b, scale_a, ScalingType.RowWise, scale_b, ScalingType.RowWise, offs=offs)

    with made_to_run(way, product) as run:
        found = run(*given)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.cpu().double(), formula(*LAYOUTS[layout]), rtol=1e-2, atol=1e-2)
    older = torch._scaled_grouped_mm(*given[:4], offs=None if ends is None else given[4], out_dtype=torch.bfloat16)
    assert older.equal(found)


def test_other_recipes_are_refused_with_what_to_do() -> None:
    a, b = values(32, 32).to(E4M3).to("xla"), columns(32, 32).to("xla")
    one = torch.ones(96, device="xla")
    with pytest.raises(ValueError, match=r"takes scales of ScalingType.RowWise.*got the recipes \[0\]"):
        F.scaled_grouped_mm(a, b, one, ScalingType.TensorWise, one, ScalingType.TensorWise, offs=ENDS.to("xla"))


GROUPED = LAYOUTS["rows by group"]
NOT_ONE_SCALE_EACH: dict[str, tuple[str, dict[str, Any]]] = {
    "scales without a recipe": ("2 scales with 1 recipes of mat_a", {"scale_a": [GROUPED[2]] * 2}),
    "other dimensions": (r"contracts the dimensions \(-1, -2\); got \(-2, -1\)", {"contraction_dim": (-2, -1)}),
    "one dimension": (r"contracts the dimensions \(-1, -2\); got \(0,\)", {"contraction_dim": (0,)}),
}


@pytest.mark.parametrize("case", NOT_ONE_SCALE_EACH)
def test_a_grouped_product_is_refused_where_it_would_leave_out_an_argument(case: str) -> None:
    said, other = NOT_ONE_SCALE_EACH[case]
    a, b, scale_a, scale_b, ends = GROUPED
    given = {"mat_a": a, "mat_b": b, "scale_a": scale_a, "scale_b": scale_b, "offs": ends, **other}
    given = {name: tree_map(lambda each: each.to("xla") if isinstance(each, Tensor) else each, value)
             for name, value in given.items()}  # fmt: skip
    with pytest.raises(ValueError, match=said):
        F.scaled_grouped_mm(**given, scale_recipe_a=ScalingType.RowWise, scale_recipe_b=ScalingType.RowWise)


def test_scales_of_blocks_are_refused_with_what_to_do() -> None:
    a, b, *_, ends = (each.to("xla") for each in GROUPED if each is not None)
    blocks = [torch.ones(size, device="xla").to(torch.float8_e8m0fnu) for size in ((len(a), 1), (len(b), 512))]
    with pytest.raises(ValueError, match=r"takes a scale of float32 for each row.*got scales of float8_e8m0fnu"):
        torch._scaled_grouped_mm(a, b, *blocks, offs=ends)
