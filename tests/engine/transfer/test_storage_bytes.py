"""Storages as bytes: what PyTorch does with those of the CPU."""

from typing import Any

import pytest
import torch

from torch_xla._engine.tensor.storage import value_of
from torch_xla._engine.transfer import storage_bytes


def storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


@pytest.mark.parametrize(
    "host",
    [
        torch.arange(6, dtype=torch.int16).view(2, 3), torch.arange(6.0).view(2, 3).t(),
        torch.ones(3, dtype=torch.bool), torch.tensor([1 + 2j]), torch.arange(4.0).bfloat16(), torch.empty(0),
    ],
    ids=range(6),
)  # fmt: skip
def test_the_bytes_are_those_of_the_host(host: torch.Tensor) -> None:
    x = host.to("xla")
    assert storage_bytes.nbytes(storage(x)) == storage(host).nbytes()
    assert storage_bytes.host_copy(storage(x)).tolist() == storage(host).tolist()
    assert storage_bytes.as_bytes(storage(x)).tolist() == storage(host).tolist()


@pytest.mark.parametrize("size", [0, 4, 6, 8, 24, 28], ids=str)
def test_a_storage_keeps_the_bytes_that_fit(size: int) -> None:
    host = torch.arange(5, dtype=torch.float32)
    x = host.to("xla")
    storage_bytes.resize(storage(x), size)
    assert storage_bytes.nbytes(storage(x)) == size
    kept = min(size, 20) // 4 * 4
    assert storage_bytes.host_copy(storage(x)).tolist()[:kept] == storage(host).tolist()[:kept]


def test_bytes_are_copied_in_every_direction() -> None:
    host, x, y = torch.arange(3.0), torch.zeros(3, device="xla"), torch.zeros(3, device="xla")
    storage_bytes.copy_into(storage(x), storage(host))
    host.zero_()
    storage_bytes.copy_into(storage(y), storage(x))
    assert x.tolist() == y.tolist() == [0, 1, 2]
    x.add_(1)
    storage_bytes.copy_into(storage(host), storage(x))
    assert host.tolist() == [1, 2, 3] and y.tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="^size does not match, self was 12 bytes but src was 8 bytes$"):
        storage_bytes.copy_into(storage(x), storage(torch.zeros(2)))


def test_bytes_of_the_host_go_to_the_device_when_a_tensor_looks_at_them() -> None:
    made = storage_bytes.new(12, torch.device("xla"))
    storage_bytes.copy_into(made, storage(torch.arange(3.0)))
    assert storage_bytes.nbytes(made) == 12 and getattr(made, "value", None) is None
    x = torch.empty(0, device="xla").set_(made, 0, (3,), (1,))  # type: ignore[call-overload]
    assert x.tolist() == [0, 1, 2] and value_of(x).spec.dtype is torch.float32
    assert made.host is None  # type: ignore[attr-defined]


def test_more_bits_than_a_dtype_has_are_left_out() -> None:
    x = torch.arange(3.0).to("xla")
    shown = torch.empty(0, dtype=torch.float64, device="xla").set_(storage(x), 0, (1,), (1,))  # type: ignore[call-overload]
    theirs = torch.empty(0, dtype=torch.float64).set_(storage(torch.arange(3.0)), 0, (1,), (1,))  # type: ignore[call-overload]
    assert shown.tolist() == theirs.tolist()
