"""Loaders that upload in the background."""

import copy
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
from torch_xla.utils.utils import DataWrapper, SampleGenerator

Point = namedtuple("Point", "x y")


def samples(metric: str) -> int:
    data = met.metric_data(metric)
    return data[0] if data else 0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("xla-")]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if threads():  # those of a loader in a cycle end with it
        gc.collect()
    wait_for(lambda: not threads())


class Counting:
    """Batches 0, 1, 2 ... and how many of them were taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(self.count):
            self.taken += 1
            yield torch.full((4,), index)


class Failing:
    """Two batches, then an exception."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.tensor([0])
        yield torch.tensor([1])
        self.fall()

    def fall(self) -> None:
        raise KeyError("no such picture")


def test_batches_arrive_on_the_device_in_order_each_time_it_is_iterated() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    bare = DataLoader(data, batch_size=4)
    loader = pl.MpDeviceLoader(bare, torch_xla.device())
    assert len(loader) == 3
    for _ in range(2):
        for ours, theirs in zip(loader, bare, strict=True):
            assert type(ours) is type(theirs)
            for mine, its in zip(ours, theirs, strict=True):
                assert mine.device == torch.device("xla:0")
                assert torch.equal(mine.cpu(), its)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_upload_threads_keep_the_order(count: int) -> None:
    loader = pl.MpDeviceLoader(Counting(60), "xla", host_to_device_transfer_threads=count, device_prefetch_size=3)
    assert [batch[0].item() for batch in loader] == list(range(60))


@pytest.mark.parametrize("device", ["xla", "xla:0", 0, torch.device("xla"), torch.device("xla", 0)])
def test_a_device_may_be_named_as_anywhere_else(device: Any) -> None:
    assert next(iter(pl.MpDeviceLoader([torch.ones(1)], device))).device == torch.device("xla:0")
    loader = pl.ParallelLoader([torch.ones(1)], [device])
    assert next(loader.per_device_loader("xla")).device == torch.device("xla:0")


def test_strides_dtypes_and_empty_tensors_survive() -> None:
    tensors = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 4).t(),
        torch.randn(10)[::3],
        torch.randn(1, 3).expand(4, 3),
        torch.tensor(3.5, dtype=torch.float64),
        torch.empty(0, 7),
        torch.tensor([True, False]),
        torch.arange(5),
        torch.randn(3).bfloat16(),
        torch.randn(3).half(),
        torch.randn(3, dtype=torch.complex64).conj(),
    ]
    for ours, tensor in zip(next(iter(pl.MpDeviceLoader([tensors], "xla"))), tensors, strict=True):
        reference = tensor.to("xla")
        assert (ours.dtype, ours.shape, ours.stride()) == (reference.dtype, reference.shape, reference.stride())
        assert torch.equal(ours.cpu(), tensor)


@dataclass
class Batch:
    images: Tensor
    names: list[str]


@dataclass(frozen=True, slots=True)
class Frozen:
    images: Tensor
    count: int = 3


def test_tensors_are_found_wherever_a_batch_keeps_them() -> None:
    x, lock = torch.ones(2), threading.Lock()
    batch = {
        "list": [x, 3, "text", None],
        "tuple": (x, b"bytes"),
        "named": Point(x, 2.5),
        "nested": [{"deep": ({"x": x},)}],
        "ordered": OrderedDict(b=x, a=1),
        "default": defaultdict(list, a=[x]),
        "mapping": UserDict({"x": x}),
        "data": Batch(x, ["a", "b"]),
        "frozen": Frozen(x),
        "object": SimpleNamespace(x=x, lock=lock),
        "set": {x, 1},
        "nothing": lock,
    }
    ours = next(iter(pl.MpDeviceLoader([batch], "xla")))
    on_device = ours["list"][0]
    assert on_device.device.type == "xla"
    assert ours["list"] == [on_device, 3, "text", None]
    assert ours["tuple"] == (on_device, b"bytes")
    assert ours["named"] == Point(on_device, 2.5)
    assert ours["nested"][0]["deep"][0]["x"] is on_device
    assert type(ours["ordered"]) is OrderedDict and list(ours["ordered"].items()) == [("b", on_device), ("a", 1)]
    assert ours["default"]["a"][0] is on_device and ours["default"]["new"] == []
    assert type(ours["mapping"]) is UserDict and ours["mapping"]["x"] is on_device
    assert ours["data"].images is on_device and ours["data"].names is batch["data"].names
    assert ours["frozen"].images is on_device and ours["frozen"].count == 3
    assert ours["object"].x is on_device and ours["object"].lock is lock
    assert on_device in ours["set"] and 1 in ours["set"]
    assert ours["nothing"] is lock
    # The batch that the loader gave is as it was.
    assert batch["list"][0] is x and batch["object"].x is x and batch["data"].images is x


def test_a_batch_that_refers_to_itself_is_uploaded() -> None:
    batch: dict[str, Any] = {"x": torch.ones(1)}
    batch["self"] = batch
    ours = next(iter(pl.MpDeviceLoader([batch], "xla")))
    assert ours["self"] is ours and ours["x"].device.type == "xla"


def test_an_object_that_moves_itself_is_asked_to() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    ours = next(iter(pl.MpDeviceLoader([{"packed": packed}], "xla")))["packed"]
    assert isinstance(ours, PackedSequence)
    assert ours.data.device.type == "xla" and ours.batch_sizes.device.type == "cpu"


def test_a_batch_without_tensors_is_not_touched() -> None:
    batches = [["a", "b"], None, 3, {"x": [1]}]
    for ours, theirs in zip(pl.MpDeviceLoader(batches, "xla"), batches, strict=True):
        assert ours is theirs


def test_what_is_on_the_device_stays_the_same_tensor() -> None:
    x = torch.ones(2, device="xla")
    assert next(iter(pl.MpDeviceLoader([[x, torch.ones(1)]], "xla")))[0] is x


def test_a_wrapper_is_put_together_again_from_its_tensors() -> None:
    class Pair(DataWrapper):
        def __init__(self, tensors: list[Tensor]) -> None:
            self.tensors = tensors

        def get_tensors(self) -> list[Tensor]:
            return self.tensors

        def from_tensors(self, tensors: list[Tensor]) -> "Pair":
            return Pair(tensors)

    pair = Pair([torch.ones(1), torch.zeros(2)])
    ours = next(iter(pl.MpDeviceLoader([(pair, 1)], "xla")))[0]
    assert [tensor.device.type for tensor in ours.tensors] == ["xla", "xla"]
    assert [tensor.device.type for tensor in pair.tensors] == ["cpu", "cpu"]


class Packed(DataWrapper):
    """A packed sequence whose sizes stay on the host, where PyTorch wants them."""

    def __init__(self, packed: PackedSequence) -> None:
        self.packed = packed

    def get_tensors(self) -> list[Tensor]:
        return [self.packed.data, self.packed.sorted_indices]

    def from_tensors(self, tensors: list[Tensor]) -> PackedSequence:
        return PackedSequence(tensors[0], self.packed.batch_sizes, tensors[1], self.packed.unsorted_indices)


@pytest.mark.parametrize("send", ["xm", "loader"])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_packed_sequence_in_a_wrapper_is_unwrapped_on_the_device(send: str, is_sorted: bool) -> None:
    packed = pack_padded_sequence(torch.randn(4, 2, 3), [2, 4], enforce_sorted=False)
    if is_sorted:  # one without indices
        packed = pack_padded_sequence(torch.randn(4, 2, 3), [4, 2])
    batch = [{"text": Packed(packed)}, torch.ones(2)]
    sent = xm.send_cpu_data_to_device(batch, "xla:0") if send == "xm" else next(iter(pl.MpDeviceLoader([batch], "xla")))
    ours = sent[0]["text"]
    assert isinstance(ours, PackedSequence) and ours.data.device.type == "xla" and sent[1].device.type == "xla"
    assert ours.batch_sizes.device.type == "cpu" and (ours.sorted_indices is None) == is_sorted
    torch.testing.assert_close(ours.data.cpu(), packed.data)
    (alone,) = xm.send_cpu_data_to_device([Packed(packed)], "xla:0")
    assert isinstance(alone, PackedSequence) and isinstance(batch[0]["text"], Packed)  # type: ignore[index]


def test_the_gradient_flows_through_an_upload_to_a_tensor_that_wants_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    (next(iter(pl.MpDeviceLoader([weight], "xla"))) * 2).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2, 2, 2]


def test_a_tensor_written_to_after_its_upload_does_not_change_the_batch() -> None:
    memory = torch.zeros(4)

    def batches() -> Iterator[Tensor]:
        for index in range(5):
            memory.fill_(index)
            yield memory

    assert [batch.tolist() for batch in pl.MpDeviceLoader(batches(), "xla", device_prefetch_size=8)][0] is not None
    loader = pl.ParallelLoader([memory], ["xla"])
    batch = loader.next_item("xla")
    memory.fill_(-1)
    assert batch.tolist() == [4, 4, 4, 4]


def test_steps_that_repeat_compile_once() -> None:
    weight = torch.zeros(8, 3, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    losses, compiles = [], []
    for images, labels in pl.MpDeviceLoader(SampleGenerator((torch.randn(6, 8), torch.zeros(6).long()), 12), "xla"):
        compiles.append(samples("CompileTime"))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(images @ weight, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert samples("CompileTime") == compiles[5]
    values = [loss.item() for loss in losses]
    assert values == sorted(values, reverse=True)


def test_an_upload_does_not_disturb_the_step_that_is_recorded() -> None:
    go = threading.Event()

    def batches() -> Iterator[Tensor]:
        yield torch.ones(3)
        go.wait()
        yield torch.full((3,), 2.0)

    loader = iter(pl.MpDeviceLoader(batches(), "xla"))
    y = next(loader) + 1
    executions = samples("ExecuteTime")
    uploads = samples("TransferToDeviceTime")
    go.set()
    wait_for(lambda: samples("TransferToDeviceTime") > uploads)
    z = y * 3
    assert samples("ExecuteTime") == executions
    assert z.tolist() == [6, 6, 6]
    assert next(loader).tolist() == [2, 2, 2]


def test_each_batch_ends_a_step_in_the_thread_that_asks_for_it() -> None:
    ran: list[tuple[int, int]] = []
    here = threading.get_ident()
    for index, _ in enumerate(pl.MpDeviceLoader(Counting(3), "xla")):
        xm.add_step_closure(lambda i: ran.append((i, threading.get_ident())), args=(index,))
        assert [i for i, _ in ran] == list(range(index))
    assert ran == [(0, here), (1, here), (2, here)]


def test_what_was_recorded_before_the_loop_is_no_part_of_the_first_step() -> None:
    x = torch.ones(3, device="xla") + 1
    loader = iter(pl.MpDeviceLoader(Counting(1), "xla"))
    next(loader)
    assert samples("ExecuteTime") == 1
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("per_execution", "marks"), [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 1, 2, 2, 3, 4]), (9, [1] * 5 + [2])]
)
def test_several_batches_may_be_one_step(per_execution: int, marks: list[int]) -> None:
    seen = []
    for _ in pl.MpDeviceLoader(Counting(5), "xla", batches_per_execution=per_execution):
        seen.append(met.counter_value("MarkStep"))
    # The last entry: after the end of the loop, when the rest of a step has been sent off too.
    assert [*seen, met.counter_value("MarkStep")] == marks


def test_memory_is_bounded_by_the_sizes_of_the_queues() -> None:
    counting = Counting(100)
    loader = pl.ParallelLoader(counting, ["xla"], loader_prefetch_size=3, device_prefetch_size=2)
    iterator = loader.per_device_loader("xla")
    # Besides those in the queues: one that the reader holds, and one that the uploader holds.
    for consumed in range(1, 6):
        next(iterator)
        wait_for(lambda: counting.taken >= consumed + 5)  # noqa: B023
        time.sleep(0.02)
        assert counting.taken <= consumed + 3 + 2 + 2


def test_the_threads_end_with_the_loader() -> None:
    iterator = iter(pl.MpDeviceLoader(Counting(3), "xla"))
    assert len(list(iterator)) == 3
    wait_for(lambda: not threads())
    assert list(iterator) == []


def test_leaving_the_loop_ends_the_threads() -> None:
    for _ in pl.MpDeviceLoader(itertools.repeat(torch.ones(1)), "xla"):
        assert threads()
        break
    assert not threads()


def test_an_exception_in_the_loop_ends_the_threads() -> None:
    def train() -> None:
        for _ in pl.MpDeviceLoader(itertools.repeat(torch.ones(1)), "xla"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    gc.collect()
    wait_for(lambda: not threads())


def test_garbage_in_a_cycle_ends_the_threads() -> None:
    iterator = iter(pl.MpDeviceLoader(itertools.repeat(torch.ones(1)), "xla"))
    holder = [iterator]
    holder.append(holder)  # type: ignore[arg-type]
    del iterator, holder
    gc.collect()
    assert not threads()


def test_closing_ends_the_threads_and_the_iterators() -> None:
    loader = pl.ParallelLoader(itertools.repeat(torch.ones(1)), ["xla"], host_to_device_transfer_threads=3)
    iterator = loader.per_device_loader("xla")
    next(iterator)
    loader.close()
    assert not threads()
    assert list(iterator) == []
    assert loader.next_item("xla") is None
    loader.close()


def test_closing_wakes_who_waits_for_a_batch() -> None:
    stuck = threading.Event()
    loader = pl.ParallelLoader(iter(lambda: stuck.wait(), None), ["xla"])
    got: list[Any] = []
    consumer = threading.Thread(target=lambda: got.append(loader.next_item("xla")))
    consumer.start()
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join(60)
    stuck.set()
    closer.join(60)
    assert got == [None]


def test_the_iterator_of_the_loader_is_gone_when_the_loop_was_left() -> None:
    closed: list[str] = []

    class Endless:
        def __iter__(self) -> Iterator[Tensor]:
            try:
                while True:
                    yield torch.ones(1)
            finally:
                closed.append(threading.current_thread().name)

    loader = pl.MpDeviceLoader(Endless(), "xla")
    for _ in loader:
        break
    assert closed == ["xla-reader"]


def _until(batches: Any, last: int) -> list[int]:
    taken = []
    for batch in batches:
        taken.append(int(batch))
        if taken[-1] == last:
            break
    return taken


@pytest.mark.parametrize("sizes", [(1, 1), (16, 8)])
def test_an_iterator_goes_on_behind_the_batch_at_which_the_loop_was_left(sizes: tuple[int, int]) -> None:
    sizes_by_name = {"loader_prefetch_size": sizes[0], "device_prefetch_size": sizes[1]}
    numbers = (torch.tensor(each) for each in range(8))
    loader = pl.MpDeviceLoader(numbers, "xla", **sizes_by_name)
    assert [_until(loader, 1), _until(loader, 4), _until(loader, 9), _until(loader, 9)] == [
        [0, 1],
        [2, 3, 4],
        [5, 6, 7],
        [],
    ]
    begins_again = pl.MpDeviceLoader([torch.tensor(each) for each in range(3)], "xla", **sizes_by_name)
    assert _until(begins_again, 1) == _until(begins_again, 1) == [0, 1]


def test_an_iterator_that_goes_on_behind_an_error_is_read_on() -> None:
    class Flaky:
        count = 0

        def __iter__(self) -> "Flaky":
            return self

        def __next__(self) -> Tensor:
            self.count += 1
            if self.count == 3:
                raise OSError("no answer")
            if self.count > 5:
                raise StopIteration
            return torch.tensor(self.count)

    loader = pl.MpDeviceLoader(Flaky(), "xla")
    taken = iter(loader)
    assert [int(next(taken)), int(next(taken))] == [1, 2]
    with pytest.raises(OSError, match="no answer"):
        next(taken)
    assert _until(loader, 9) == [4, 5]


def test_the_threads_of_an_iterator_end_with_its_loader() -> None:
    loader = pl.MpDeviceLoader(itertools.repeat(torch.ones(1)), "xla")
    for _ in loader:
        break
    assert threads()
    del loader
    gc.collect()
    wait_for(lambda: not threads())


def test_an_exception_of_the_loader_comes_after_the_batches_before_it_and_with_its_traceback() -> None:
    iterator = iter(pl.MpDeviceLoader(Failing(), "xla"))
    assert [next(iterator).item(), next(iterator).item()] == [0, 1]
    with pytest.raises(KeyError, match="no such picture") as caught:
        next(iterator)
    assert "fall" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_exception_of_an_upload_comes_in_the_place_of_its_batch() -> None:
    class Broken(DataWrapper):
        def get_tensors(self) -> list[Tensor]:
            raise OSError("broken")

        def from_tensors(self, tensors: list[Tensor]) -> None:
            return None

    iterator = iter(pl.MpDeviceLoader([torch.tensor([0]), Broken(), torch.tensor([2])], "xla"))
    assert next(iterator).item() == 0
    with pytest.raises(OSError, match="broken"):
        next(iterator)
    assert next(iterator).item() == 2
    assert list(iterator) == []


def test_an_exception_at_the_start_of_the_loader_is_raised_at_once() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(pl.MpDeviceLoader(3, "xla"))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [torch.ones(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"])
def test_a_batch_the_device_cannot_hold_raises_what_moving_it_raises(batch: Tensor) -> None:
    with pytest.raises(NotImplementedError) as expected:
        batch.to("xla")
    with pytest.raises(NotImplementedError) as caught:
        next(iter(pl.MpDeviceLoader([batch], "xla")))
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batches_per_execution": 0}, "batches_per_execution must be at least 1; got 0"),
        ({"loader_prefetch_size": 0}, "the size of a queue must be at least 1; got 0"),
        ({"device_prefetch_size": -1}, "the size of a queue must be at least 1; got -1"),
        ({"host_to_device_transfer_threads": 0}, "host_to_device_transfer_threads must be at least 1; got 0"),
    ],
)
def test_sizes_that_could_never_work_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iter(pl.MpDeviceLoader([torch.ones(1)], "xla", **arguments))


def test_devices_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(RuntimeError, match="cpu is not an xla device"):
        iter(pl.MpDeviceLoader([torch.ones(1)], torch.device("cpu")))
    with pytest.raises(ValueError, match="needs one or more devices, each once"):
        pl.ParallelLoader([torch.ones(1)], [])
    with pytest.raises(ValueError, match="needs one or more devices, each once"):
        pl.ParallelLoader([torch.ones(1)], ["xla", "xla:0"])


def test_an_unknown_argument_is_refused_when_the_loader_is_iterated() -> None:
    with pytest.raises(TypeError, match="prefetch"):
        iter(pl.MpDeviceLoader([torch.ones(1)], "xla", prefetch=3))


def test_a_loader_without_a_length_can_be_iterated() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    loader = pl.MpDeviceLoader(DataLoader(Stream(), batch_size=2), "xla")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than this machine has cores
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_in_other_processes_feed_it(persistent: bool) -> None:
    data = TensorDataset(torch.arange(12.0))
    bare = DataLoader(data, batch_size=3, num_workers=2, persistent_workers=persistent)
    loader = pl.MpDeviceLoader(bare, "xla")
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert [batch.tolist() for [batch] in loader] == expected
    for [batch] in loader:
        assert batch.tolist() == expected[0]
        break
    assert [batch.tolist() for [batch] in loader] == expected


def test_a_loader_that_pins_its_memory_feeds_it() -> None:
    bare = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True)
    assert [batch.tolist() for [batch] in pl.MpDeviceLoader(bare, "xla")] == [[0, 1], [2, 3]]


def test_it_has_the_attributes_of_the_loader_and_takes_its_own() -> None:
    bare = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    loader = pl.MpDeviceLoader(bare, "xla")
    assert loader.dataset is bare.dataset and loader.batch_size == 2
    loader.dataset = "mine"
    loader.batch_sampler = None
    assert loader.dataset == "mine" and loader.batch_sampler is None
    assert bare.dataset != "mine" and bare.batch_sampler is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        loader.nothing_like_it  # noqa: B018


def test_it_can_be_copied_and_pickled() -> None:
    loader = pl.MpDeviceLoader([torch.ones(1)], "xla", batches_per_execution=2)
    for twin in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin._parallel_loader_kwargs == {"batches_per_execution": 2}
        assert [batch.tolist() for batch in twin] == [[1]]


def test_a_framework_may_wrap_it_and_change_its_arguments_late() -> None:
    class Wrapper(pl.MpDeviceLoader):
        def __init__(self, loader: Any, device: Any) -> None:
            super().__init__(loader, device)
            self.epochs = 0
            self.device = device

        def __iter__(self) -> Any:
            self.epochs += 1
            return super().__iter__()

        @property
        def batch_sampler(self) -> Any:
            return self._loader.batch_sampler

        @property
        def missing(self) -> Any:
            return self._loader.missing

    class Sharding:
        """As `ShardingSpec` looks from here."""

        def __init__(self) -> None:
            self.applied: list[tuple[int, ...]] = []

        def can_apply(self, tensor: Tensor) -> bool:
            return tensor.dim() == 2

        def apply(self, tensor: Tensor) -> None:
            assert tensor.device.type == "xla"
            self.applied.append(tuple(tensor.shape))

    bare = DataLoader(TensorDataset(torch.randn(4, 3), torch.arange(4)), batch_size=2)
    loader, sharding = Wrapper(bare, "xla"), Sharding()
    loader._parallel_loader_kwargs["input_sharding"] = sharding
    assert isinstance(loader, pl.MpDeviceLoader)
    assert len(list(loader)) == 2
    assert loader.epochs == 1 and loader.batch_sampler is bare.batch_sampler and not hasattr(loader, "missing")
    assert sharding.applied == [(2, 3), (2, 3)]

    batch = {"x": torch.ones(2, 2), "y": torch.ones(2, 2)}
    named = pl.MpDeviceLoader([batch], "xla", input_sharding={"x": Sharding(), "y": None})
    assert len(list(named)) == 1
    assert named._parallel_loader_kwargs["input_sharding"]["x"].applied == [(2, 2)]
    named._parallel_loader_kwargs["input_sharding"] = {"z": Sharding()}
    with pytest.raises(KeyError, match=r"input_sharding has no entry for \['x', 'y'\]"):
        list(named)


def test_the_iterator_of_a_device_keeps_its_loader_alive() -> None:
    device = torch_xla.device()
    iterator = pl.ParallelLoader(Counting(20), [device]).per_device_loader(device)
    gc.collect()
    assert len(iterator) == 20
    assert [batch[0].item() for batch in iterator] == list(range(20))


def test_what_a_loader_uploads_is_counted() -> None:
    batch = [torch.ones(4), torch.ones(2, dtype=torch.int64)]
    assert len(list(pl.MpDeviceLoader([batch] * 3, "xla"))) == 3
    assert samples("TransferToDeviceTime") >= 3
    sent = met.metric_data("OutboundData")
    assert sent is not None and sent[1] == 3 * (16 + 16)


def test_data_can_be_sent_by_hand() -> None:
    loader = pl.ParallelLoader([], ["xla"])
    sent = loader.send_cpu_data_to_device([{"x": torch.ones(2)}], "xla")
    assert sent[0]["x"].device.type == "xla"


TWO_DEVICES = """
import itertools, torch, torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl

loader = pl.ParallelLoader([torch.full((2,), i) for i in range(7)], torch_xla.devices(), batches_per_execution=2)
assert loader.per_device_samples() == 3
first, second = (loader.per_device_loader(device) for device in torch_xla.devices())
for index, (ours, theirs) in enumerate(zip(first, second, strict=True)):
    assert (str(ours.device), str(theirs.device)) == ("xla:0", "xla:1")
    assert (ours.tolist(), theirs.tolist()) == ([2 * index] * 2, [2 * index + 1] * 2)
assert index == 2
assert met.counter_value("MarkStep") == 6  # on each device two steps that began, and the rest

# Only the steps of the loader's own device end.
here = torch.ones(2, device="xla:0") + 1
there = torch.ones(2, device="xla:1") + 1
iterator = iter(pl.MpDeviceLoader(itertools.repeat(torch.ones(1)), "xla:1"))
assert met.metric_data("ExecuteTime") is None
next(iterator)
assert met.metric_data("ExecuteTime")[0] == 1
assert torch_xla.device() == torch.device("xla:0")
assert (here.tolist(), there.tolist()) == ([2, 2], [2, 2])
try:
    pl.ParallelLoader([torch.ones(1)], ["xla:1"]).next_item("xla:0")
except ValueError as error:
    print(error)
# The interpreter ends while the threads of `iterator` wait for room.
"""


@pytest.mark.slow
def test_several_devices_share_a_loader_and_the_process_ends_with_threads_alive() -> None:
    environment = {**os.environ, "CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", TWO_DEVICES], env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "xla:0 is not a device of this loader; it loads for xla:1\n"


class Telling:
    """A loader that shows, as Accelerate's do, whether it has given its last batch."""

    end_of_dataloader = False

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[Tensor]:
        self.end_of_dataloader = False
        for index in range(self._count):
            self.end_of_dataloader = index == self._count - 1
            yield torch.full((2,), float(index))


def test_a_loader_that_tells_its_place_tells_that_of_the_loop() -> None:
    loader = pl.MpDeviceLoader(Telling(3), torch_xla.device(), batches_per_execution=2)
    for _ in range(2):
        assert [(batch.tolist()[0], loader.end_of_dataloader) for batch in loader] == [
            (0, False),
            (1, False),
            (2, True),
        ]
    parallel = pl.ParallelLoader(Telling(2), ["xla:0"])
    assert next(iter(parallel.per_device_loader("xla:0"))).device.type == "xla" and not threads()
    parallel.close()
    assert parallel.next_item("xla:0") is None


def test_a_loader_may_be_given_by_either_name() -> None:
    for name in ("loader", "cpu_loader"):
        parallel = pl.ParallelLoader(**{name: [torch.ones(2)]}, devices=["xla:0"])
        assert [batch.tolist() for batch in parallel.per_device_loader("xla:0")] == [[1.0, 1.0]]
    with pytest.raises(TypeError, match="takes one loader"):
        pl.ParallelLoader(devices=["xla:0"])
    with pytest.raises(TypeError, match="takes one loader"):
        pl.ParallelLoader([torch.ones(2)], ["xla:0"], loader=[])
