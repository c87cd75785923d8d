"""Views read and written as JAX arrays show and change what PyTorch shows and changes, whatever the dtype."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.support.rules import to_jax, to_torch
from tests.support.views import NESTED, ViewCase, geometry_of, shows_each_once, view_cases
from torch_xla._engine import dtypes
from torch_xla._engine.ir.view import Geometry, at_start, is_moved
from torch_xla._engine.lowering.views.apply_view_ops import (
    read_places,
    read_view,
    reinterpret,
    reinterpret_back,
    write_view,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def jax_of(tensor: torch.Tensor) -> jax.Array:
    with jax.enable_x64(True):
        return to_jax(tensor)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparison: NaN equals itself, and every dtype can be compared."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.flatten()).view(torch.uint8)


def check_equal(array: jax.Array, tensor: torch.Tensor) -> None:
    ours = to_torch(array)
    assert ours.dtype == tensor.dtype and ours.shape == tensor.shape
    assert torch.equal(bits(ours), bits(tensor))


def under_jit(function: Callable[..., Any], *arrays: jax.Array) -> Any:
    with jax.enable_x64(True):
        return jax.jit(function)(*arrays)


@given(view_cases(smallest=0))
@settings(max_examples=60, deadline=None)
def test_any_view_is_read_as_torch_shows_it(case: ViewCase) -> None:
    with jax.enable_x64(True):
        check_equal(read_view(jax_of(case.whole()), case.base, case.view), case.tensor)


@given(view_cases(smallest=0))
@settings(max_examples=60, deadline=None)
def test_a_write_through_any_view_reaches_its_base(case: ViewCase) -> None:
    if not shows_each_once(case.view):
        return
    value = -2 - torch.arange(case.tensor.numel()).view(case.tensor.shape)
    with jax.enable_x64(True):
        got = write_view(jax_of(case.whole()), jax_of(value), case.base, case.view)
    case.tensor.copy_(value)
    check_equal(got, case.whole())


@given(view_cases(NESTED, smallest=2))
@settings(max_examples=30, deadline=None)
def test_a_view_whose_place_is_an_argument_is_read_and_written_there(case: ViewCase) -> None:
    view, at = case.view, at_start(case.view)
    with jax.enable_x64(True):
        offset = jnp.asarray(view.offset)
        if is_moved(case.base, view, unit_steps=False):
            check_equal(read_view(jax_of(case.whole()), case.base, at, offset), case.tensor)
        if not (is_moved(case.base, view, unit_steps=True) and shows_each_once(view)):
            return
        value = -2 - torch.arange(case.tensor.numel()).view(case.tensor.shape)
        got = write_view(jax_of(case.whole()), jax_of(value), case.base, at, offset)
    case.tensor.copy_(value)
    check_equal(got, case.whole())


def storage_of(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Values that differ and are exact in every dtype (bool: a pattern)."""
    count_up = torch.arange(count) % 5
    return count_up.remainder(3).to(torch.bool) if dtype is torch.bool else count_up.to(dtype)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the whole": lambda x: x.flatten(),
    "a permutation": lambda x: x.permute(2, 0, 1),
    "a region": lambda x: x[1:3, :, 2:4],
    "steps that divide": lambda x: x[::2, :, ::3],
    "steps that do not": lambda x: x[1::3, :, ::4],
    "sparse steps": lambda x: x[:, 1:2, ::4],
    "a diagonal": lambda x: x.diagonal(0, 1, 2),
    "a far diagonal": lambda x: x.diagonal(0, 0, 2),
    "one element": lambda x: x[2, 1, 3],
    "rows across dimensions": lambda x: x.as_strided((4, 3), (17, 2), 3),
    "interleaved": lambda x: x.as_strided((2, 2), (6, 4), 1),
    "nothing": lambda x: x[2:2],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_views_are_read_and_written_inside_a_program(dtype: torch.dtype, name: str) -> None:
    x = storage_of(dtype, 4 * 3 * 6).view(4, 3, 6)
    before, view = jax_of(x), VIEWS[name](x)
    base, geometry = geometry_of(x), geometry_of(view)

    def read_and_write(array: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        return read_view(array, base, geometry), write_view(array, new, base, geometry)

    value = torch.ones(view.shape).to(dtype)
    shown, after = under_jit(read_and_write, before, jax_of(value))
    check_equal(shown, view)
    view.copy_(value)
    check_equal(after, x)


def test_places_are_read_of_a_storage_of_a_size_that_a_run_knows() -> None:
    (size,) = jax.export.symbolic_shape("n")
    with jax.enable_x64(True):
        transposed = jax.jit(lambda x: read_places(x, (1, 0), (x.shape[1] - 1, 2), (3, 1), 3))
        exported = jax.export.export(transposed)(jax.ShapeDtypeStruct((3, size), np.float32))
        for n in (2, 5):
            base = torch.randn(n, 3).t()
            check_equal(exported.call(to_jax(base)), base.as_strided((n - 1, 2), (3, 1), 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_that_overlap_are_read_and_filled(dtype: torch.dtype) -> None:
    x = storage_of(dtype, 20)
    base, view = geometry_of(x), x.unfold(0, 6, 3)
    check_equal(under_jit(lambda array: read_view(array, base, geometry_of(view)), jax_of(x)), view)
    spread = x.unfold(0, 6, 3)[:, ::2]
    check_equal(under_jit(lambda array: read_view(array, base, geometry_of(spread)), jax_of(x)), spread)
    ones = torch.ones(view.shape).to(dtype)
    after = under_jit(lambda a, v: write_view(a, v, base, geometry_of(view)), jax_of(x), jax_of(ones))
    view.fill_(1)
    check_equal(after, x)


def test_a_sparse_view_is_written_where_most_elements_stay() -> None:
    x = torch.zeros(40, 40)
    for view in [x.diagonal(), x[::13, ::11], x[:, 1:3].t()[:, ::9], x.view(-1)[5::77]]:
        base, geometry = geometry_of(x), geometry_of(view)
        value = torch.randn(view.shape)
        after = under_jit(lambda a, v: write_view(a, v, base, geometry), jax_of(x), jax_of(value))  # noqa: B023
        view.copy_(value)
        check_equal(after, x)


def test_a_read_costs_no_more_operations_than_steps() -> None:
    qkv = Geometry.contiguous((2, 8, 96))
    query = Geometry((2, 4, 8, 8), (768, 8, 96, 1))
    jaxpr = jax.make_jaxpr(lambda a: read_view(a, qkv, query))(jnp.zeros(qkv.size))
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["reshape", "slice", "transpose"]


def test_a_write_of_a_region_updates_the_array_in_place() -> None:
    base, rows = Geometry.contiguous((64, 32)), Geometry((8, 32), (32, 1), 320)
    write = jax.jit(lambda a, v: write_view(a, v, base, rows), donate_argnums=0)
    text = write.lower(jnp.zeros((64, 32)), jnp.ones((8, 32))).compile().as_text()
    assert "dynamic-update-slice" in text and "scatter" not in text
    assert "copy(" not in text
    there = jax.jit(lambda a, v, o: write_view(a, v, base, at_start(rows), o), donate_argnums=0)
    text = there.lower(jnp.zeros((64, 32)), jnp.ones((8, 32)), 320).compile().as_text()
    assert "dynamic-update-slice" in text and "scatter" not in text and "copy(" not in text


def test_a_bucket_is_filled_in_place_whatever_shapes_lie_in_it() -> None:
    sizes = [(32, 48), (48,), (64, 48), (48,), (16, 96)]
    bucket = Geometry.contiguous((sum(prod(size) for size in sizes),))
    starts = accumulate((prod(size) for size in sizes), initial=0)
    views = [replace(Geometry.contiguous(size), offset=start) for size, start in zip(sizes, starts, strict=False)]

    def fill(array: jax.Array, values: list[jax.Array]) -> jax.Array:
        for view, value in zip(views, values, strict=True):
            array = write_view(array, jnp.tanh(value), bucket, view)
        return array

    values = [jnp.ones(size) for size in sizes]
    text = jax.jit(fill, donate_argnums=0).lower(jnp.zeros(bucket.size), values).compile().as_text()
    assert "dynamic-update-slice" in text and "copy(" not in text


@pytest.mark.parametrize("theirs", dtypes.TO_TORCH.values(), ids=str)
@pytest.mark.parametrize("ours", [torch.float32, torch.uint8, torch.complex64], ids=str)
def test_a_storage_is_reinterpreted_as_torch_does_it(ours: torch.dtype, theirs: torch.dtype) -> None:
    if theirs is torch.bool:  # the only bytes a bool may have are 0 and 1
        memory = (torch.arange(48, dtype=torch.int64) % 2).to(torch.uint8)
    else:
        # Every byte differs, and no float is a NaN, whose bits a device may change.
        memory = torch.arange(16, 64, dtype=torch.uint8)
    x, expected = memory.view(ours), memory.view(theirs)
    base, dtype = geometry_of(x), dtypes.to_jax(theirs)

    def there_and_back(array: jax.Array) -> tuple[jax.Array, jax.Array]:
        flat = reinterpret(array, base, dtype)
        return flat, reinterpret_back(flat, base, dtypes.to_jax(ours))

    flat, back = under_jit(there_and_back, jax_of(x))
    check_equal(flat, expected)
    check_equal(back, x)


def test_bools_are_bytes_of_zero_and_one() -> None:
    mask = torch.tensor([True, False, True, True])
    flat = under_jit(lambda array: reinterpret(array, geometry_of(mask), np.dtype(np.int32)), jax_of(mask))
    check_equal(flat, mask.view(torch.int32))
    check_equal(under_jit(lambda array: reinterpret_back(array, geometry_of(mask), np.dtype(np.bool_)), flat), mask)


def test_a_storage_that_is_no_whole_number_of_elements_keeps_its_end() -> None:
    x = torch.arange(5, dtype=torch.float32)
    flat = under_jit(lambda array: reinterpret(array, geometry_of(x), np.dtype(np.complex128)), jax_of(x))
    assert flat.shape == (2,)
    check_equal(flat[:1], x[:4].view(torch.complex128))
    check_equal(under_jit(lambda array: reinterpret_back(array, geometry_of(x), np.dtype(np.float32)), flat), x)


@pytest.mark.parametrize("size", [(0,), (2, 0, 3), (), (1,)])
def test_empty_and_single_elements_are_reinterpreted(size: tuple[int, ...]) -> None:
    x = torch.full(size, 1.5)
    for dtype in (torch.uint8, torch.int32, torch.float64, torch.complex64, torch.bfloat16):
        flat = under_jit(lambda array: reinterpret(array, geometry_of(x), dtypes.to_jax(dtype)), jax_of(x))  # noqa: B023
        assert flat.shape == (-(-x.numel() * 4 // dtype.itemsize),)
        check_equal(under_jit(lambda a: reinterpret_back(a, geometry_of(x), np.dtype(np.float32)), flat), x)


def test_a_complex_view_of_a_channels_last_storage_shows_its_parts() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.complex64).contiguous(memory_format=torch.channels_last)
    parts = torch.view_as_real(x.transpose(1, 2))[:, 1:, ..., 1]
    base, view = geometry_of(x), geometry_of(parts)
    whole = Geometry.contiguous((2 * x.numel(),))
    shown = under_jit(lambda a: read_view(reinterpret(a, base, np.dtype(np.float32)), whole, view), jax_of(x))
    check_equal(shown, parts)

    def write(array: jax.Array, value: jax.Array) -> jax.Array:
        flat = write_view(reinterpret(array, base, np.dtype(np.float32)), value, whole, view)
        return reinterpret_back(flat, base, np.dtype(np.complex64))

    value = torch.randn(parts.shape)
    after = under_jit(write, jax_of(x), jax_of(value))
    parts.copy_(value)
    check_equal(after, x)


WIDE = [torch.int16, torch.float16, torch.int32, torch.float32, torch.int64, torch.float64, torch.complex64]


@pytest.mark.parametrize("second", WIDE, ids=str)
@pytest.mark.parametrize("first", WIDE, ids=str)
def test_bytes_are_taken_for_one_dtype_and_then_for_another(first: torch.dtype, second: torch.dtype) -> None:
    """XLA makes one bitcast of two, and refuses that of bytes which are wide elements in between."""
    memory = torch.arange(16, 64, dtype=torch.uint8)
    x = memory.view(first)

    def twice(array: jax.Array) -> jax.Array:
        return reinterpret(
            reinterpret(array, geometry_of(memory), dtypes.to_jax(first)), geometry_of(x), dtypes.to_jax(second)
        )

    check_equal(under_jit(twice, jax_of(memory)), memory.view(second))
