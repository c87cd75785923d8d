"""The state of a loader that is read ahead is that behind the last batch that was given out."""

import copy
import gc
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_xla.distributed.parallel_loader as pl
from torch_xla._engine.input import device_loader, resumable_loaders


class Stateful:
    """A loader like torchdata's: it returns the place of its last iterator, and begins at a loaded state."""

    def __init__(self, count: int = 10) -> None:
        self.count, self.state, self.begin = count, {"next": [0]}, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.state, self.begin = {"next": [self.begin]}, 0
        return self._batches(self.state)

    def _batches(self, state: dict[str, list[int]]) -> Iterator[torch.Tensor]:
        while state["next"][0] < self.count:
            state["next"][0] += 1  # this must not change a state that was returned before
            yield torch.tensor([state["next"][0] - 1])
        state["next"][0] = 0  # the next epoch

    def state_dict(self) -> dict[str, list[int]]:
        return self.state

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.state, self.begin = copy.deepcopy(state), state["next"][0]


class Batches:
    """An iterator as Grain's."""

    def __init__(self, count: int = 10) -> None:
        self.next, self.count = 0, count

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> torch.Tensor:
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return torch.tensor([self.next - 1])

    def get_state(self) -> dict[str, int]:
        return {"next": self.next}

    def set_state(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Makes:
    """A loader whose iterators have a state, but not the loader itself."""

    def __iter__(self) -> Batches:
        return Batches()


class GoesOn:
    """A loader whose next iteration goes on where the last one was left; it begins anew after its end."""

    def __init__(self, count: int = 10) -> None:
        self.next, self.count = 0, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.next < self.count:
            self.next += 1
            yield torch.tensor([self.next - 1])
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class GoesOnOnce(GoesOn):
    """Has no other epoch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.next < self.count:
            self.next += 1
            yield torch.tensor([self.next - 1])


class BeginsLate(GoesOn):
    """Begins anew when the first batch is taken, or once at a loaded state."""

    begin = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.next, self.begin = self.begin, 0
        yield from super().__iter__()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = self.begin = state["next"]


class Draws(BeginsLate):
    """Begins anew in another order."""

    order: list[int]

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.order = torch.randperm(self.count).tolist()
        for batch in super().__iter__():
            yield torch.tensor([self.order[int(batch)]])


class Dataset(IterableDataset):
    """Goes on where its last iteration was left."""

    def __init__(self, count: int) -> None:
        self.elements = GoesOn(count)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.elements)

    def state_dict(self) -> dict[str, int]:
        return self.elements.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.elements.load_state_dict(state)


class OfDataset:
    """Begins anew itself, as torchdata's loader does, and has a dataset that goes on."""

    def __init__(self, count: int = 10) -> None:
        self.dataset, self.given = Dataset(count), 0
        self.loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        loaded, self.loaded = self.loaded, None
        self.given = 0 if loaded is None else loaded["given"]
        if loaded is not None:
            self.dataset.load_state_dict(loaded["dataset"])
        return self.batches()

    def batches(self) -> Iterator[torch.Tensor]:
        for element in self.dataset:
            self.given += 1
            yield element

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


class Wraps:
    """Holds a loader, and has its state."""

    def __init__(self, count: int = 10) -> None:
        self.inner = OfDataset(count)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.inner)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])


SIZES = [(1, 1, 1), (1, 4, 2), (16, 8, 1), (3, 2, 3)]


def around(loader: Any, sizes: tuple[int, int, int] = (16, 8, 1)) -> pl.MpDeviceLoader:
    ahead, on_device, threads = sizes
    options = {"loader_prefetch_size": ahead, "device_prefetch_size": on_device}
    return pl.MpDeviceLoader(loader, "xla", host_to_device_transfer_threads=threads, **options)


def read_ahead() -> None:
    """Gives the threads the time to read what there is room for."""
    time.sleep(0.05)


def numbers(batches: Any) -> list[int]:
    return [int(batch) for batch in batches]


@pytest.mark.parametrize("taken", [0, 1, 3, 9, 10])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_state_is_that_behind_the_last_batch(sizes: tuple[int, int, int], taken: int) -> None:
    loader = around(Stateful(), sizes)
    batches = iter(loader)
    assert [int(next(batches)) for _ in range(taken)] == list(range(taken))
    read_ahead()
    state = loader.state_dict()
    assert state == {"next": [taken]}
    again = around(Stateful(), sizes)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert numbers(again) == list(range(taken, 10))
    assert numbers(batches) == list(range(taken, 10))


def test_the_state_stays_when_the_loop_is_left_and_is_the_next_epochs_when_it_ends() -> None:
    loader = around(Stateful())
    for batch in loader:
        if int(batch) == 2:
            break
    read_ahead()
    assert loader.state_dict() == {"next": [3]}
    assert numbers(loader) == list(range(10))
    assert loader.state_dict() == {"next": [0]}


def left_and_begun_again(loader: Any, stops: tuple[int, ...]) -> list[object]:
    """Take some batches in one `for` each, and all in the last one, with the state behind each of them."""
    seen: list[object] = []
    for stop in (*stops, None):
        taken: list[int] = []
        for batch in loader:
            taken.append(int(batch))
            if len(taken) == stop:
                break
        read_ahead()
        seen.append((taken, loader.state_dict()))
    return seen


@pytest.mark.parametrize("kind", [GoesOn, GoesOnOnce, BeginsLate, Draws, Stateful, OfDataset, Wraps])
@pytest.mark.parametrize("stops", [(3,), (1, 1, 4), (9,), (10, 2)])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_loop_that_is_left_loses_no_batch(kind: type, stops: tuple[int, ...], sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    expected = left_and_begun_again(kind(), stops)
    torch.manual_seed(0)
    assert left_and_begun_again(around(kind(), sizes), stops) == expected


def test_a_loader_that_goes_on_tells_its_state_before_the_first_batch_of_another_loop() -> None:
    loader = around(GoesOn())
    next(iter(loader))
    read_ahead()
    batches = iter(loader)
    assert loader.state_dict() == {"next": 1}
    assert int(next(batches)) == 1


def test_a_state_that_is_told_does_not_change_afterwards() -> None:
    loader = around(Stateful())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    state["next"].append(5)
    assert loader.state_dict() == {"next": [1]}
    next(batches)
    assert state == {"next": [1, 5]}


@pytest.mark.parametrize("sizes", SIZES)
def test_an_iterator_tells_its_state_and_goes_on_from_another(sizes: tuple[int, int, int]) -> None:
    source = Batches()
    loader = around(source, sizes)
    batches = iter(loader)
    assert [int(next(batches)) for _ in range(4)] == [0, 1, 2, 3]
    read_ahead()
    assert loader.get_state() == batches.get_state() == {"next": 4}
    loader.set_state({"next": 2})
    assert loader.get_state() == {"next": 2}
    assert numbers(batches) == list(range(2, 10))


@pytest.mark.parametrize("sizes", SIZES)
def test_an_iterator_that_was_read_to_its_end_goes_on_from_an_earlier_state(sizes: tuple[int, int, int]) -> None:
    loader = around(Batches(), sizes)
    batches = iter(loader)
    assert numbers(batches) == list(range(10)) and numbers(batches) == []
    batches.set_state({"next": 7})
    assert numbers(batches) == [7, 8, 9] and numbers(batches) == []
    loader.set_state({"next": 8})
    assert numbers(loader) == [8, 9]


def test_a_state_from_before_the_first_batch_stays_as_it_is() -> None:
    class ShowsItself(Stateful):
        def state_dict(self) -> dict[str, list[int]]:
            return self.state  # the one that the reading changes

    loader = around(ShowsItself())
    batches = iter(loader)
    state = loader.state_dict()
    assert numbers(batches) == list(range(10)) and state == {"next": [0]}


def test_an_iterator_of_a_loader_tells_its_state() -> None:
    loader = around(Makes())
    batches = iter(loader)
    batches.set_state({"next": 5})
    assert int(next(batches)) == 5
    read_ahead()
    assert batches.get_state() == {"next": 6}
    with pytest.raises(AttributeError, match=r"Makes has no 'get_state'; its iterator has: it = iter\(loader\)"):
        loader.get_state()


def test_a_loader_without_a_state_has_none() -> None:
    loader = around(DataLoader([torch.ones(2)]))
    for one in (loader, iter(loader)):
        assert not any(hasattr(one, name) for name in resumable_loaders.NAMES)


def test_a_state_that_is_loaded_in_the_middle_of_an_iteration_ends_it_with_a_word() -> None:
    loader = around(Stateful())
    batches = iter(loader)
    next(batches), next(batches)
    loader.load_state_dict({"next": [7]})
    with pytest.raises(RuntimeError, match=r"load_state_dict\(\) was called during this iteration.*another `for`"):
        next(batches)
    assert numbers(loader) == [7, 8, 9]


def test_of_a_loader_that_is_iterated_twice_at_once_the_last_one_tells() -> None:
    source = Stateful()
    loader, other = around(source), around(source)
    first, second = iter(loader), iter(other)
    next(first), next(second), next(second)
    with pytest.raises(RuntimeError, match=r"the same Stateful is iterated elsewhere"):
        loader.state_dict()
    assert other.state_dict() == {"next": [2]}
    assert numbers(first) == list(range(1, 10))


def test_what_the_loader_raises_comes_where_the_state_is_asked_for() -> None:
    class Fails(Stateful):
        def state_dict(self) -> Any:
            raise NotImplementedError("no state of shuffled files")

    loader = around(Fails())
    batches = iter(loader)
    next(batches)
    with pytest.raises(NotImplementedError, match="no state of shuffled files"):
        loader.state_dict()
    assert numbers(batches) == list(range(1, 10))


def test_a_state_that_cannot_be_copied_is_refused() -> None:
    class Lives(Stateful):
        def state_dict(self) -> Any:
            return {"lock": threading.Lock()}

    loader = around(Lives())
    next(iter(loader))
    with pytest.raises(RuntimeError, match=r"Lives.state_dict\(\) gives something that cannot be copied"):
        loader.state_dict()


@pytest.mark.parametrize("told", [{"lock": threading.Lock()}, NotImplementedError("no state")], ids=["lock", "error"])
@pytest.mark.parametrize("asked", [False, True])
def test_what_cannot_be_told_leaves_no_thread_behind(told: Any, asked: bool) -> None:
    """The threads keep the exception, and that would keep the loader, by the frames it came from."""

    class Tells(Stateful):
        def state_dict(self) -> Any:
            if isinstance(told, Exception):
                raise type(told)(*told.args)
            return told

    def readers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("xla-")}

    def begin_and_leave() -> None:
        loader = around(Tells(100), (2, 2, 1))
        next(iter(loader))
        if asked:
            with pytest.raises((RuntimeError, NotImplementedError)) as found:
                loader.state_dict()
            assert "In the loader" in "".join(traceback.format_exception(found.value))

    before = readers()
    begin_and_leave()
    end = time.monotonic() + 60
    while readers() - before:
        gc.collect()
        assert time.monotonic() < end, "a thread reads on"
        time.sleep(0.01)


def test_a_loader_that_is_not_read_ahead_tells_its_own() -> None:
    class Accelerated(Stateful):
        end_of_dataloader = False

    loader = around(Accelerated())
    batches = iter(loader)
    next(batches), next(batches)
    assert loader.state_dict() == {"next": [2]}


def test_a_loader_in_the_middle_of_an_iteration_is_copied_and_pickled() -> None:
    loader = around(Stateful())
    batches = iter(loader)
    next(batches)
    read_ahead()
    for made in (copy.copy(loader), pickle.loads(pickle.dumps(around(Stateful())))):
        assert isinstance(made, pl.MpDeviceLoader)
    assert numbers(batches) == list(range(1, 10))


def test_a_reader_that_does_not_come_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:

    goes_on = threading.Event()

    class Slow(Batches):
        def __next__(self) -> torch.Tensor:
            if self.next == 2:
                goes_on.wait(60)
            return super().__next__()

    monkeypatch.setattr(device_loader, "_PATIENCE", 0.05)
    loader = around(Slow())
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(RuntimeError, match="a thread is inside Slow still"):
        loader.set_state({"next": 0})
    goes_on.set()
