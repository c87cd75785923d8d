"""The state of a loader that threads read ahead: its state after the last batch that was given out.

A loader or an iterator that can be resumed returns its state by `state_dict` (torchdata's `StatefulDataLoader`) or by
`get_state` (Grain's iterators). While a thread reads ahead, this is the state of that thread. So the thread reads the
state after each batch and passes it on with the batch; it becomes current when the batch is given out.
"""

import copy
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakMethod, WeakValueDictionary

from ..atomic import lock

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
            raise self.error
        return copy.deepcopy(self.state)


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
            return {name: self._asked(name) for name in TAKES if callable(getattr(self.source, name, None))}

    def _asked(self, name: str) -> _Answer:
        try:
            state = getattr(self.source, name)()
        except Exception as error:  # of the user's loader: raised where the state is asked for
            return _Answer(None, error)
        try:
            return _Answer(copy.deepcopy(state))  # the source may go on with what it has shown
        except Exception as error:  # of the user's objects, likewise
            failure = RuntimeError(
                f"{name}() of a loader that is read ahead: {type(self.source).__name__}.{name}() gives something that "
                f"cannot be copied ({type(error).__name__}: {error}), and goes on changing it. Have it return plain "
                "data, such as numbers, lists and dicts."
            )
            failure.__cause__ = error
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


_places: WeakValueDictionary[int, ReadAhead] = WeakValueDictionary()


def answer(place: ReadAhead, name: str) -> Callable[..., object]:
    """Return the replacement of the method `name` of the source of `place`, which has this method."""
    if name in TAKES:
        return lambda: place.state(name)
    return lambda state: place.set(name, state)
