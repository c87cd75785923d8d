"""Buffers are made, moved, divided and read without a change of an element or of a dtype."""

import gc
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch.utils.dlpack import from_dlpack

from torch_xla._engine import dtypes
from torch_xla._engine.errors import NotComputed
from torch_xla._engine.runtime import abstract_devices, buffers
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.abstract_devices import PlannedBuffer
from torch_xla._engine.runtime.buffers import PartsByDevice
from torch_xla.interop import to_jax

ONE = targets.of_device(jax.devices("cpu")[0])


def four() -> targets.Target:
    return targets.of_mesh(abstract_devices.virtual_devices(4))


def divided(*axes: str | None) -> Any:
    return NamedSharding(four().mesh, PartitionSpec(*axes))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", list(dtypes.TO_TORCH)[::3], ids=str)
def test_contents_keep_their_bits_whatever_jax_is_set_to(dtype: np.dtype) -> None:
    host = np.arange(6).reshape(2, 3).astype(dtype)
    for target in (ONE, four()):
        buffer = buffers.put(host.copy(), target)
        assert buffer.dtype == dtype and buffers.get(buffer).tobytes() == host.tobytes()
        assert buffer.sharding.device_set == set(target.devices)
        copied = buffers.copied(buffer)
        assert copied.dtype == dtype and copied is not buffer and buffers.get(copied).tobytes() == host.tobytes()


def test_a_vector_of_numbers_is_moved_again_only_when_it_is_another() -> None:
    for target in (ONE, four()):
        vector, kept = buffers.KeptVector(target), buffers.kept_vectors()
        first = vector.put(np.array([1.0, 0.0]))
        assert vector.put(np.array([1.0, 0.0])) is first
        # Equal, and not the same: what differs in its bits is moved.
        other = vector.put(np.array([1.0, -0.0]))
        assert other is not first and np.signbit(buffers.get(other)).tolist() == [False, True]
        assert buffers.get(vector.put(np.array([1.0, 0.0]))).tolist() == [1.0, 0.0]
        assert not np.signbit(buffers.get(first)).any()
        assert buffers.kept_vectors() == kept + 1
        del vector
        assert buffers.kept_vectors() == kept


def test_what_is_read_cannot_be_written() -> None:
    array = buffers.get(buffers.put(np.ones(3), ONE))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5


def test_a_buffer_is_divided_and_put_together() -> None:
    host = np.arange(32.0).reshape(8, 4)
    rows = buffers.put(host.copy(), four(), divided("0"))
    assert [shard.data.shape for shard in rows.addressable_shards] == [(4, 4)] * 4
    columns = buffers.place(rows, divided(None, "1"))
    assert columns is not rows and columns.sharding.shard_shape((8, 4)) == (8, 2)
    assert buffers.place(columns, divided(None, "1")) is columns
    np.testing.assert_array_equal(buffers.get(columns), host)
    parts = {shard.device: np.asarray(shard.data) for shard in rows.addressable_shards}
    by_columns = {shard.device: np.asarray(shard.data) for shard in columns.addressable_shards}
    for made, sharding in zip(
        buffers.of_parts(
            [PartsByDevice((8, 4), divided("0"), parts), PartsByDevice((8, 4), divided(None, "1"), by_columns)]
        ),
        (divided("0"), divided(None, "1")),
        strict=True,
    ):
        np.testing.assert_array_equal(buffers.get(made), host)
        assert made.sharding == sharding
    np.testing.assert_array_equal(buffers.get(buffers.of_processes(host, divided("0"))), host)


@pytest.mark.parametrize("size", [(6, 4), (4, 2), (8, 1), (5, 3)], ids=str)
def test_a_buffer_is_cut_or_made_longer_where_it_is_placed(size: tuple[int, int]) -> None:
    host = np.arange(15, dtype=np.int64).reshape(5, 3)
    expected = np.zeros(size, np.int64)
    rows, columns = min(5, size[0]), min(3, size[1])
    expected[:rows, :columns] = host[:rows, :columns]
    for source in (buffers.put(host.copy(), four()), buffers.put(host.copy(), ONE)):
        placed = buffers.place(source, four().everywhere, size)
        assert placed.dtype == np.int64
        np.testing.assert_array_equal(buffers.get(placed), expected)


def test_a_buffer_moves_and_converts() -> None:
    buffer = buffers.put(np.arange(3, dtype=np.int64), ONE)
    moved = buffers.move(buffer, four())
    assert moved.sharding.device_set == set(four().devices) and buffers.get(moved).tolist() == [0, 1, 2]
    assert buffers.converted(buffer, np.dtype(np.int64)) is buffer
    narrow = buffers.converted(buffer, dtypes.to_jax(torch.float64))
    assert narrow.dtype == np.float64 and narrow.tolist() == [0, 1, 2]


def test_memory_passes_by_dlpack_in_both_directions() -> None:
    host = torch.arange(64, dtype=torch.int64)
    buffer = buffers.adopted(host)
    assert buffer.dtype == np.int64
    again = torch.from_dlpack(buffers.offered(buffer))
    assert again.tolist() == host.tolist() and again.data_ptr() == buffer.unsafe_buffer_pointer()


def test_the_caller_keeps_what_a_device_would_take_over() -> None:
    host = np.ones(3)
    assert buffers.owned_copy(host, ONE) is not host
    elsewhere: Any = SimpleNamespace(is_host=False, is_spread=False)
    assert buffers.owned_copy(host, elsewhere) is host
    on_several: Any = SimpleNamespace(is_host=False, is_spread=True)
    assert buffers.owned_copy(host, on_several) is not host


def test_while_a_step_is_planned_nothing_is_put_anywhere() -> None:
    real = buffers.put(np.ones((4, 2)), four())
    with abstract_devices.in_place_of_buffers(None):
        made = [
            buffers.put(np.ones(3), ONE), buffers.place(real, divided("0")), buffers.move(real, ONE),
            buffers.of_processes(np.ones((4, 2)), divided("0")),
        ]  # fmt: skip
        assert buffers.place(real, real.sharding) is real
    assert all(isinstance(each, PlannedBuffer) for each in made) and made[1].sharding == divided("0")


def test_memory_that_was_given_away_is_refused() -> None:
    x = torch.full((43,), 3.0).to("xla")
    to_jax(x).delete()
    for use in (lambda: to_jax(x), lambda: from_dlpack(x), x.cpu):
        with pytest.raises(NotComputed, match=r"\(float32\[43\]\) was given to a program .*or clone\(\) it before"):
            use()
    assert gc.isenabled()
