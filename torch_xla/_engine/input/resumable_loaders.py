"""The state of a loader that threads read ahead: its state after the last batch that was given out.

A loader or an iterator that can be resumed returns its state by `state_dict` (torchdata's `StatefulDataLoader`) or by
`get_state` (Grain's iterators). While a thread reads ahead, this is the state of that thread. So the thread reads the
state after each batch and passes it on with the batch; it becomes current when the batch is given out.
"""

import copy
import pickle
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakMethod, WeakValueDictionary

import torch
from torch.utils.data import IterableDataset

from ..atomic import lock

_Begun = TypeVar("_Begun")

# From the name of the method that returns a state to the name of the one that sets it.
TAKES = {"state_dict": "load_state_dict", "get_state": "set_state"}
_TELLS = {takes: tells for tells, takes in TAKES.items()}
NAMES = (*TAKES, *_TELLS)


def has_state(source: object) -> bool:
    """Return whether a loader or an iterator can return and set a state."""
    return any(callable(getattr(source, name, None)) for name in TAKES)


class _Answer(NamedTuple):
    state: object
    error: Exception | None = None

    def given(self) -> Any:
        if self.error is not None:
            raise _again(self.error)
        return copy.deepcopy(self.state)


def _without_frames(error: Exception) -> Exception:
    """Return an error of a loader with the lines that raised it as a note.

    Their frames would hold those who called, and with them the loader: as the threads that read it hold what it told,
    neither would ever end.
    """
    error.add_note("In the loader:\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip())
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def _again(error: Exception) -> Exception:
    """Return an equal exception, to be raised: it will hold the frames that it passes."""
    try:
        made = copy.copy(error)
    except Exception:  # of the user's class, which cannot be made from what it shows
        made = RuntimeError(f"{type(error).__name__}: {error}")
        made.__notes__ = [*error.__notes__]
    made.__cause__ = error.__cause__
    return made


# The results of a source's methods after a batch, by their names.
Note = dict[str, _Answer]


class ReadAhead:
    """The place of one iteration of a loader, as seen by who takes its batches."""

    turn: threading.RLock
    _is_last: bool

    def __init__(self, loader: object, batches: object) -> None:
        self.source: Any = next((each for each in (loader, batches) if has_state(each)), None)
        self.is_of_iterator = self.source is batches
        self.given: Note | None = None  # behind the last batch that was given out; `None` before anything is read
        self.first: list[Note] = []  # before the first batch, and behind the first two
        self.why_over = ""  # why no batch comes any more
        self._set_back: Callable[[], Callable[[], None] | None] = lambda: None
        before: ReadAhead | None = _places.get(id(self.source)) if self.source is not None else None
        # No other iteration begins, and the state is not set, while the reader of this one asks for it.
        self.turn = lock() if before is None else before.turn
        with self.turn:
            if before is not None:
                before._is_last = False
            self._is_last = True
            if self.source is not None:
                _places[id(self.source)] = self  # which keeps the source, so nothing else comes to its address

    def note(self) -> Note | None:
        """Return the current state of the source. Called in the thread that reads it."""
        if self.source is None:
            return None
        with self.turn:
            if not self._is_last:
                return None
            noted = {name: self._asked(name) for name in TAKES if callable(getattr(self.source, name, None))}
            if len(self.first) < 3:
                self.first.append(noted)
            return noted

    def _asked(self, name: str) -> _Answer:
        try:
            state = getattr(self.source, name)()
        except Exception as error:  # of the user's loader: raised where the state is asked for
            return _Answer(None, _without_frames(error))
        try:
            return _Answer(copy.deepcopy(state))  # the source may go on with what it has shown
        except Exception as error:  # of the user's objects, likewise
            failure = RuntimeError(
                f"{name}() of a loader that is read ahead: {type(self.source).__name__}.{name}() gives something that "
                f"cannot be copied ({type(error).__name__}: {error}), and goes on changing it. Have it return plain "
                "data, such as numbers, lists and dicts."
            )
            failure.__cause__ = _without_frames(error)
            return _Answer(None, failure)

    def ends_by(self, set_back: Callable[[], None]) -> None:
        """Call `set_back` before a state is set, which ends the reading."""
        self._set_back = WeakMethod(set_back)

    def state(self, name: str) -> Any:
        """Return the state behind the last batch that was given out."""
        with self.turn:
            if not self._is_last:
                raise RuntimeError(
                    f"{name}(): the same {type(self.source).__name__} is iterated elsewhere, so its state is that "
                    "of the other iteration. Iterate a loader once at a time if you save its state."
                )
            if self.given is None:
                return self._asked(name).given()  # no thread reads ahead yet
            return self.given[name].given()

    def set(self, name: str, state: object) -> object:
        """Let the source begin from `state`. Its own iterator goes on from there; other iterations are over."""
        set_back = self._set_back()
        if set_back is not None:
            set_back()
        with self.turn:
            self.given = None
            if not self.is_of_iterator:
                self.why_over = (
                    f"{name}() was called during this iteration, and counts from the next one on: begin another `for`"
                )
            return getattr(self.source, name)(state)


class AnotherLoop:
    """How a loader begins again after its last iteration was left: as if no batch had been read ahead of those given.

    Most loaders begin anew. Some go on behind the last batch that was read, which is not the last that was given out,
    so they get its state first. A loader does not say which it does. If its state stays the same when an iteration
    begins, two iterations of one batch each are tried from its first state: where it goes on, the second one leaves it
    behind the second batch.

    torchdata's loader of an iterable dataset begins anew itself, and its dataset may go on. Then the loader gets the
    state too, and an iteration that nobody reads takes the dataset there.
    """

    def __init__(self) -> None:
        self._goes_on: bool | None = None
        self._dataset_goes_on: bool | None = None

    def begin(self, loader: Iterable[object], before: ReadAhead, begin: Callable[[], _Begun]) -> _Begun:
        """Return what `begin` makes of the loader. The thread that read it `before` has ended."""
        name = next((name for name in TAKES if callable(getattr(loader, name, None))), None)
        if name is None or before.given is None or before.source is not loader or self._goes_on is False:
            return begin()
        given, read = before.given.get(name), before._asked(name)
        if given is None or given.error or read.error or _is_same(given.state, read.state):
            return begin()
        if self._dataset_goes_on is None:
            self._dataset_goes_on = _has_a_dataset_that_goes_on(loader)
        if self._dataset_goes_on:
            getattr(loader, TAKES[name])(given.given())
            with torch.random.fork_rng(devices=[]):
                iter(loader)
            return begin()
        if self._goes_on is None:
            begun = begin()
            if not _is_same(read.state, before._asked(name).state):
                return begun
            first = [note[name] for note in before.first]
            self._goes_on = len(first) == 3 and _tries(loader, TAKES[name], name, first)
        if self._goes_on:
            getattr(loader, TAKES[name])(given.given())
        return begin()


def _has_a_dataset_that_goes_on(loader: object) -> bool:
    """Return whether an iteration of a loader's dataset begins behind the last element of the one before.

    This is seen of a copy: of two iterations of one element each, the second one leaves another state behind.
    """
    if not hasattr(loader, "dataset"):  # a wrapper of the user's, perhaps
        held = [
            each for each in getattr(loader, "__dict__", {}).values() if has_state(each) and hasattr(each, "dataset")
        ]
        return any(map(_has_a_dataset_that_goes_on, held))
    dataset = loader.dataset
    # Workers that do not stay have a copy of the dataset for each iteration.
    is_read_again = not getattr(loader, "num_workers", 0) or getattr(loader, "persistent_workers", False)
    if not (isinstance(dataset, IterableDataset) and hasattr(dataset, "state_dict") and is_read_again):
        return False
    states = []
    with torch.random.fork_rng(devices=[]):
        try:
            tried: Any = copy.deepcopy(dataset)
            for _ in range(2):
                next(iter(tried), None)
                states.append(copy.deepcopy(tried.state_dict()))
        except Exception:  # of the user's dataset: one that cannot be copied begins where it wants
            return False
    return not _is_same(*states)


def _tries(loader: Iterable[object], takes: str, tells: str, first: list[_Answer]) -> bool:
    """Return whether a second iteration goes on behind the batch of the first one; `first` are the states of one."""
    if any(answer.error for answer in first):
        return False
    with torch.random.fork_rng(devices=[]):  # an iteration may draw the seed of its order
        getattr(loader, takes)(first[0].given())
        for answer in first[1:]:
            next(iter(loader), None)
            if not _is_same(getattr(loader, tells)(), answer.state):
                return False
    return True


def _is_same(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors and arrays of more than one element say no truth
        return pickle.dumps(one) == pickle.dumps(other)


_places: WeakValueDictionary[int, ReadAhead] = WeakValueDictionary()


def answer(place: ReadAhead, name: str) -> Callable[..., object]:
    """Return the replacement of the method `name` of the source of `place`, which has this method."""
    if name in TAKES:
        return lambda: place.state(name)
    return lambda state: place.set(name, state)
