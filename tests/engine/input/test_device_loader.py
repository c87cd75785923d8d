"""Batches pass from a loader to devices, each device's in order, and failures on the way are raised."""

import threading
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from torch_xla._engine.input import device_loader
from torch_xla._engine.input.device_loader import Exhausted, InTurn, PerDeviceQueue, Pipeline, place_batch, upload_batch
from torch_xla._engine.tensor.device import Device, device_at

Pair = namedtuple("Pair", "first second")


class Marks:
    """A sharding that notes what it is applied to."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def can_apply(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == 2

    def apply(self, tensor: torch.Tensor) -> None:
        self.seen.append(tensor)


class NoUpdate(OrderedDict):
    """As the outputs of models are."""

    def update(self, *args: object, **kwargs: object) -> None:
        raise TypeError("no updates")


def as_given(batch: Any, device: Device) -> Any:
    return batch, device.index


def pipeline(loader: Any, count: int = 1, upload: Any = as_given, threads: int = 2, size: int = 2) -> Pipeline:
    return Pipeline(loader, [PerDeviceQueue(Device(index), size, size) for index in range(count)], upload, threads)


def test_tensors_are_uploaded_and_the_rest_stays() -> None:
    batch = {"x": torch.ones(2), "on": torch.ones(1, device="xla"), "n": [1, "text"], "sparse": object()}
    made = upload_batch(batch, device_at(0))
    assert made["x"].device.type == "xla" and batch["x"].device.type == "cpu"
    assert all(made[name] is batch[name] for name in ("on", "n", "sparse"))


def test_each_device_gets_every_nth_batch_in_order_and_an_incomplete_round_is_left_out() -> None:
    made = pipeline(range(8), count=3)
    devices = [queue.device for queue in made._queues.values()]
    found = [[made.next_batch(device) for device in devices] for _ in range(2)]
    assert found == [[(0, 0), (1, 1), (2, 2)], [(3, 0), (4, 1), (5, 2)]]
    for device in devices:
        with pytest.raises(Exhausted):
            made.next_batch(device)
    made.close()


def test_an_exception_of_the_loader_comes_at_every_device_behind_what_came_before() -> None:
    def loader() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("no more files")

    made = pipeline(loader(), count=2)
    for device in [queue.device for queue in made._queues.values()]:
        assert made.next_batch(device) == (device.index + 1, device.index)
        with pytest.raises(ValueError, match="^no more files$"):
            made.next_batch(device)
        with pytest.raises(Exhausted):
            made.next_batch(device)
    made.close()


def test_an_exception_of_an_upload_comes_in_the_place_of_its_batch() -> None:
    def upload(batch: int, device: Device) -> int:
        if batch == 1:
            raise MemoryError("full")
        return batch

    made = pipeline(range(3), upload=upload)
    device = made._queues[0].device
    assert made.next_batch(device) == 0
    with pytest.raises(MemoryError, match="full"):
        made.next_batch(device)
    assert made.next_batch(device) == 2
    made.close()


def test_nothing_is_read_before_the_first_batch_is_asked_for() -> None:
    """The sampler's epoch is set after `iter` and decides the order, as for a `DataLoader` without workers."""
    data = list(range(40))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=3)
    loader: DataLoader[int] = DataLoader(data, batch_size=4, sampler=sampler)  # type: ignore[arg-type]
    expected = iter(loader)
    made = pipeline(loader)
    assert not made._threads
    sampler.set_epoch(5)
    device = made._queues[0].device
    assert [made.next_batch(device)[0].tolist() for _ in range(5)] == [batch.tolist() for batch in expected]
    made.close()

    untouched = iter([1])
    made = pipeline(untouched)
    made.close()
    with pytest.raises(Exhausted):
        made.next_batch(made._queues[0].device)
    assert not made._threads and list(untouched) == [1]


def test_closing_ends_the_threads_wherever_they_wait() -> None:
    made = pipeline(iter(int, 1), count=2, size=1)  # never ends
    made.next_batch(made._queues[0].device)
    made.close()
    assert not any(thread.is_alive() for thread in made._threads)
    with pytest.raises(Exhausted):
        made.next_batch(made._queues[0].device)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="^host_to_device_transfer_threads must be at least 1; got 0$"):
        pipeline([], threads=0)
    device = device_at(0)
    for queues in ([], [PerDeviceQueue(device, 1, 1)] * 2):
        with pytest.raises(ValueError, match="^a loader needs one or more devices, each once; got "):
            Pipeline([], queues, as_given, 1)
    made, other = pipeline([1]), Device(7)
    with pytest.raises(ValueError, match="^xla:7 is not a device of this loader; it loads for xla:0$"):
        made.next_batch(other)
    made.close()


def test_a_loader_that_tells_its_place_is_read_when_it_is_asked() -> None:
    read: list[int] = []
    device = device_at(0)
    turn = InTurn(map(lambda n: read.append(n) or n, range(2)), device, as_given)
    assert read == [] and turn.next_batch(device) == (0, 0) and read == [0]
    with pytest.raises(ValueError, match="<xla:7> is not a device of this loader; it loads for <xla:0>"):
        turn.next_batch(Device(7))
    assert turn.next_batch(device) == (1, 0)
    for _ in range(2):
        with pytest.raises(Exhausted):
            turn.next_batch(device)


@pytest.mark.parametrize("kind", [dict, NoUpdate, MappingProxyType], ids=["dict", "outputs", "read-only"])
def test_a_sharding_of_each_part_by_its_name(kind: Any) -> None:
    marks = Marks()
    batch = kind({"x": torch.ones(2, 3), "n": 5, "y": torch.ones(2)})
    made = place_batch(batch, device_at(0), {"x": marks, "n": None, "y": None, "z": marks})
    assert list(made) == ["x", "n", "y"] and made["n"] == 5 and marks.seen == [made["x"]]
    assert made["x"].device.type == made["y"].device.type == "xla" and batch["x"].device.type == "cpu"
    if kind is not MappingProxyType:
        assert type(made) is kind


@pytest.mark.parametrize("kind", [list, tuple, Pair._make], ids=["list", "tuple", "namedtuple"])
def test_a_sharding_of_each_part_by_its_place(kind: Any) -> None:
    marks = Marks()
    made = place_batch(kind([torch.ones(2, 3), torch.ones(2)]), device_at(0), [marks, marks])
    assert type(made) is type(kind([1, 2])) and len(marks.seen) == 1 and marks.seen[0] is made[0]


@pytest.mark.parametrize(
    ("batch", "sharding", "error", "text"),
    [
        ([1], {"x": Marks()}, ValueError, "input_sharding names parts of the batch, but the batch is a list"),
        ({"x": 1, "y": 1}, {"x": Marks()}, KeyError, r"input_sharding has no entry for \['y'\] of the batch, but for"),
        ([1, 2], [Marks()], TypeError, "input_sharding has 1 entries, but the batch is 2 parts"),
        ({"y": 1}, [Marks()], TypeError, "input_sharding has 1 entries, but the batch is a dict"),
    ],
    ids=range(4),
)
def test_a_sharding_that_does_not_fit_the_batch_is_refused(
    batch: Any, sharding: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        place_batch(batch, device_at(0), sharding)


def test_a_loader_that_fails_to_begin_raises_at_once_and_starts_no_thread() -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            raise OSError("no such folder")

    threads = threading.active_count()
    with pytest.raises(OSError, match="no such folder"):
        pipeline(Broken())
    assert threading.active_count() <= threads  # one of an earlier test may end meanwhile
    assert device_loader.tells_its_place(type("Accelerated", (), {"end_of_dataloader": False})()) and not (
        device_loader.tells_its_place([])
    )


def test_a_loader_may_begin_another_one_when_it_begins() -> None:
    class Outer:
        def __iter__(self) -> Iterator[int]:
            inner = InTurn([1, 2], device_at(0), as_given)
            return iter([inner.next_batch(device_at(0)) for _ in range(2)])

    given: list[int] = []
    begins = threading.Thread(
        target=lambda: given.append(InTurn(Outer(), device_at(0), as_given).next_batch(device_at(0)))
    )
    begins.daemon = True
    begins.start()
    begins.join(60)
    assert given == [((1, 0), 0)]
