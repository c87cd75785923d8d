"""Collectives, with one row of an array for each process, against NumPy. Groups: `tests/engine/distributed/`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.collectives import exchange
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.runtime import device_assignment, platform

COUNT = 4
PLATFORMS = ("cpu", "gpu", "tpu")  # whose forms of a collective the CPU computes
DTYPES = [np.bool_, np.uint8, np.int16, np.int64, np.float16, jnp.bfloat16, np.float32, np.complex64]


def among_four(function: Callable[..., Any], *rows: Any, on: str = "cpu") -> Any:
    """Return the results of four processes with one row each, computed as on a platform."""
    alone = device_assignment.of_replicas(tuple(platform.local_devices()[:1]))
    four = replace(alone, devices=alone.devices * COUNT, platform=on)

    def program(*arrays: Any) -> Any:
        with replica_axis.lowering_for(four):
            replica_axis.begin(jnp.zeros(1))
            return function(*arrays)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(program, axis_name=device_assignment.REPLICAS))(*rows)
    return jax.tree.map(np.asarray, found)


def rows(dtype: Any, *size: int) -> np.ndarray:
    numbers = np.arange(COUNT * int(np.prod(size))).reshape(COUNT, *size) % 7 % (2 if dtype is np.bool_ else 7)
    return (numbers * (1 + 1j) if dtype is np.complex64 else numbers).astype(dtype)


REDUCTIONS: dict[str, Any] = {
    "sum": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("on", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_reductions(dtype: Any, on: str) -> None:
    given, small = rows(dtype, 2, 3), rows(dtype, 1)
    kind = np.dtype(dtype).kind
    names = [
        name
        for name in REDUCTIONS
        if name in ("sum", "mul") or (kind in "biu" or (name in ("min", "max") and kind != "c"))
    ]

    def all_of_them(*arrays: Any) -> list[Any]:
        return [exchange.all_reduce(list(arrays), name, ()) for name in names]

    for name, found in zip(names, among_four(all_of_them, given, small, on=on), strict=True):
        for before, after in zip((given, small), found, strict=True):
            wide = before.astype(np.float64) if kind in "fV" else before
            function = {"sum": np.logical_or, "mul": np.logical_and}.get(name) if kind == "b" else None
            expected = (function or REDUCTIONS[name]).reduce(wide).astype(dtype)
            assert after.dtype == before.dtype and after.shape == before.shape
            np.testing.assert_array_equal(
                after.astype(np.complex128), np.broadcast_to(expected, after.shape).astype(np.complex128)
            )


@pytest.mark.parametrize("on", PLATFORMS)
@pytest.mark.parametrize("dtype", [*DTYPES, np.float64, jnp.float8_e4m3fn], ids=lambda dtype: np.dtype(dtype).name)
def test_what_is_sent_arrives_as_it_was(dtype: Any, on: str) -> None:
    given = rows(dtype, 2, 4)
    if np.dtype(dtype).kind == "f":
        given[2, 0] = -0.0, np.nan, np.inf, np.finfo(dtype).smallest_subnormal

    def all_of_them(array: Any) -> list[Any]:
        return [
            exchange.all_gather([array, array[:, :1]], 1, COUNT, ())[0],
            exchange.all_gather([array], 1, COUNT, ())[0],
            exchange.all_to_all(array, 1, 0, COUNT, ()),
            exchange.collective_permute(array, ((0, 1), (1, 3), (3, 2), (2, 0))),
            exchange.broadcast([array], 2, ())[0] if on != "gpu" else array,  # XLA has it for GPUs alone
        ]

    gathered, one_gathered, moved, sent, root = among_four(all_of_them, given, on=on)
    for process in range(COUNT):
        assert_same_bits(gathered[process], np.concatenate(list(given), 1))
        assert_same_bits(one_gathered[process], np.concatenate(list(given), 1))
        assert_same_bits(moved[process], np.concatenate([each[:, process : process + 1] for each in given]))
        assert_same_bits(root[process], given[2 if on != "gpu" else process])
    for process, source in enumerate((2, 0, 3, 1)):
        assert_same_bits(sent[process], given[source])


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64], ids=lambda dtype: np.dtype(dtype).name)
def test_extremes_of_64_bits_as_a_tpu_finds_them(dtype: Any) -> None:
    limits = np.finfo(dtype) if dtype is np.float64 else np.iinfo(dtype)
    drawn = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (COUNT, 200)).astype(dtype)
    drawn[:, 0] = limits.min, 0, 5, limits.max
    drawn[:, 1] = 5 + 2**32, 4 + 2**32, 6 + 2**33, 7 + 2**33  # of equal upper halves the lower ones decide

    def both(array: Any) -> list[Any]:
        return [exchange.all_reduce([array], name, ())[0] for name in ("min", "max")]

    least, most = among_four(both, drawn, on="tpu")
    for process in range(COUNT):
        np.testing.assert_array_equal(least[process], drawn.min(0))
        np.testing.assert_array_equal(most[process], drawn.max(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_tpu_takes_groups_of_several_sizes(dtype: Any) -> None:
    given, groups = rows(dtype, 2, 3), ((1,), (0, 2, 3))
    names = ["sum"] if dtype is np.complex64 else ["sum", "min", "max"]

    def all_of_them(array: Any) -> list[Any]:
        reduced = [exchange.all_reduce([array], name, groups)[0] for name in names]
        return [*reduced, exchange.broadcast([array], 0, groups)[0], exchange.all_gather([array], 0, 3, groups)[0]]

    *reduced, root, gathered = among_four(all_of_them, given, on="tpu")
    for process in range(COUNT):
        group = groups[0] if process == 1 else groups[1]
        for name, found in zip(names, reduced, strict=True):
            function = np.logical_or if dtype is np.bool_ and name == "sum" else REDUCTIONS[name]
            np.testing.assert_array_equal(found[process], function.reduce(given[list(group)]).astype(dtype))
        assert_same_bits(root[process], given[group[0]])
        if process != 1:
            assert_same_bits(gathered[process], np.concatenate(given[list(group)]))


def test_a_gpu_broadcasts() -> None:
    def program(*arrays: Any) -> Any:
        alone = device_assignment.of_replicas(tuple(platform.local_devices()[:1]))
        with replica_axis.lowering_for(replace(alone, devices=alone.devices * COUNT, platform="gpu")):
            replica_axis.begin(jnp.zeros(1))
            return exchange.broadcast([*arrays], 2, ()), exchange.broadcast([*arrays], 1, ((0, 1), (2, 3)))

    given = jnp.zeros((4, 2), jnp.bfloat16)
    traced = str(jax.make_jaxpr(program, axis_env=[(device_assignment.REPLICAS, COUNT)])(given))
    assert traced.count("pbroadcast[axis_name=('replicas',) source=2]") == 1
    assert traced.count("psum") == 1 and ":u16[4,2] = psum" in traced  # XLA's broadcast knows no groups


SENT = [
    ("cpu", np.float32, "f32"), ("cpu", np.int16, "u32"), ("cpu", np.int64, "i64"), ("cpu", np.bool_, "u32"),
    ("tpu", jnp.bfloat16, "bf16"), ("tpu", np.int8, "i8"), ("tpu", np.bool_, "u8"), ("gpu", np.float16, "f16"),
]  # fmt: skip


@pytest.mark.parametrize(("on", "dtype", "sent"), SENT, ids=lambda each: each if isinstance(each, str) else None)
def test_words_are_sent_as_what_they_are(on: str, dtype: Any, sent: str) -> None:
    def program(*arrays: Any) -> Any:
        alone = device_assignment.of_replicas(tuple(platform.local_devices()[:1]))
        with replica_axis.lowering_for(replace(alone, platform=on)):
            replica_axis.begin(jnp.zeros(1))
            return [
                exchange.all_gather([arrays[0]], 0, 1, ())[0],
                exchange.all_to_all(arrays[0], 0, 0, 1, ()),
                exchange.collective_permute(arrays[0], ((0, 0),)),
            ]

    with jax.enable_x64(True):
        traced = str(jax.make_jaxpr(program, axis_env=[(device_assignment.REPLICAS, 1)])(jnp.zeros((4, 2), dtype)))
    lines = [
        line
        for line in traced.splitlines()
        if any(f"= {op}[" in line for op in ("all_gather", "all_to_all", "ppermute"))
    ]
    assert len(lines) == 3 and all(f":{sent}[" in line for line in lines), traced


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int16, np.float32, np.complex64], ids=lambda dtype: np.dtype(dtype).name
)
def test_each_gets_its_part_of_a_reduction(dtype: Any) -> None:
    given, other = rows(dtype, 2, 4), rows(dtype, 1, 8)

    def both(array: Any, second: Any) -> list[Any]:
        alone = exchange.reduce_scatter([array], "sum", 1, COUNT, ())
        return [*alone, *exchange.reduce_scatter([array, second], "sum", 1, COUNT, ())]

    whole, wide = (
        (np.logical_or.reduce(each) if dtype is np.bool_ else each.sum(0)).astype(dtype) for each in (given, other)
    )
    for found, expected, width in zip(among_four(both, given, other), (whole, whole, wide), (1, 1, 2), strict=True):
        for process in range(COUNT):
            np.testing.assert_array_equal(found[process], expected[:, process * width : (process + 1) * width])


def test_nothing_is_sent_of_arrays_without_elements() -> None:
    empty = np.zeros((COUNT, 0, 4), np.float32)
    found = among_four(
        lambda x: [
            exchange.all_reduce([x], "sum", ())[0],
            exchange.all_to_all(x, 1, 0, COUNT, ()),
            exchange.broadcast([x], 0, ())[0],
            exchange.reduce_scatter([x], "sum", 1, COUNT, ())[0],
        ],
        empty,
    )
    assert [each.shape[1:] for each in found] == [(0, 4), (0, 1), (0, 4), (0, 1)]
