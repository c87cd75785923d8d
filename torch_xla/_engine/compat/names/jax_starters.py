"""Private names of JAX that start a compiled program on buffers, without JAX's checks of each argument."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat, tee
from operator import itemgetter, methodcaller
from typing import Any

import jax
from jax._src.core import eval_context
from jax._src.interpreters import pxla

# Takes argument lists, and gives for each the outputs of a run.
Starter = Callable[[Iterable[Sequence[jax.Array]]], Iterator[Sequence[jax.Array]]]


@dataclass(frozen=True, slots=True)
class Chain:
    """A `Starter` of two calls of C's, which may be made in its place."""

    execute: Callable[[Sequence[jax.Array]], Any]
    consume: Callable[[Any], Sequence[jax.Array]]

    def __call__(self, calls: Iterable[Sequence[jax.Array]], /) -> Iterator[Sequence[jax.Array]]:
        return map(self.consume, map(self.execute, calls))


def starter(executable: object) -> Starter | None:
    """Return a function that runs a compiled program on buffers; `None` if JAX itself would have to do more.

    JAX checks type, size and device of each argument, and its settings, to find the executable for a call. The engine's
    buffers always match the program they are passed to.

    A run begins when the iterator is asked for its outputs. No Python runs from then until the outputs exist, so no
    interrupt arrives when inputs are donated and outputs are missing (`atomic`).
    """
    call = _call_of(executable)
    if call is None or not _is_plain(executable, call):
        return None
    execute = call.xla_executable.execute_sharded
    consume = methodcaller("consume_with_handlers", call.out_handler.handlers)
    return Chain(execute, consume)


def starter_in_turn(executable: object, last: deque[Any]) -> Starter | None:
    """Do as `starter`, but begin a run when the first of the `last` runs has ended, and append it to them.

    Python starts programs with callbacks and does not wait for them: the callbacks may need a lock that is held here.
    """
    call = _call_of(executable)
    if call is None:
        return None
    if not _is_plain(executable, call):
        return partial(map, partial(_call_in_turn, call, last)) if call.mut is None else None
    execute = partial(call.xla_executable.execute_sharded, with_tokens=True)
    consume = methodcaller("consume_with_handlers", call.out_handler.handlers)

    def start(calls: Iterable[Sequence[jax.Array]]) -> Iterator[Sequence[jax.Array]]:
        ended = map(_WAIT, map(last.__getitem__, repeat(0)))
        started, runs = tee(map(execute, map(_FIRST, zip(calls, ended, strict=False))))
        noted = map(last.append, map(_TOKEN, runs))  # type: ignore[func-returns-value]
        return map(consume, map(_FIRST, zip(started, noted, strict=False)))

    return start


_FIRST, _TOKEN, _WAIT = itemgetter(0), methodcaller("consume_token"), methodcaller("block_until_ready")


def _call_in_turn(call: Any, last: deque[Any], arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    _WAIT(last[0])
    with jax.enable_x64(True):
        given = call.in_handler([array for index, array in enumerate(arrays) if index in call.kept_var_idx])
        return _call_with_tokens(call, call.out_handler.handlers, given, last.append)


def _call_of(executable: object) -> Any:
    call = getattr(getattr(executable, "_executable", None), "unsafe_call", None)
    return call if isinstance(call, pxla.ExecuteReplicated) else None


def _is_plain(executable: Any, call: Any) -> bool:
    """Return whether JAX would only start the executable."""
    has_effects = call.has_unordered_effects or call.ordered_effects or call.has_host_callbacks or call.mut
    return not has_effects and len(call.kept_var_idx) == len(jax.tree.leaves(executable.in_avals))


def call_by_jax(executable: Any, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Run a compiled program in JAX's own way.

    An interrupt may have left JAX in the middle of a trace, and a finalizer may run a program there: JAX would make
    the tokens that order callbacks part of that trace.
    """
    with jax.enable_x64(True), eval_context():
        outputs: Sequence[jax.Array] = executable(*arrays)
    return outputs


def starter_on_each(compiled: Any) -> Starter:
    """Return a function that runs a program over a mesh on this process's part of each array.

    Arrays and results are on this process's only device of the mesh. JAX would require arrays that span all processes,
    to be wrapped before and unwrapped after the call.
    """
    call = compiled._executable.unsafe_call
    execute, handlers = call.xla_executable.execute_sharded, [itemgetter(0)] * len(call.out_handler.handlers)
    if call.ordered_effects or call.has_unordered_effects or call.has_host_callbacks:
        return partial(map, partial(_call_with_tokens, call, handlers))
    consume = methodcaller("consume_with_handlers", handlers)
    return lambda calls: map(consume, map(execute, calls))


def _call_with_tokens(
    call: Any, handlers: Sequence[object], arrays: Sequence[jax.Array], note: Callable[[Any], object] = bool
) -> Sequence[jax.Array]:
    """Call with tokens; `note` is given what can be waited for: the run has ended then."""
    found = call.xla_executable.execute_sharded(call._add_tokens_to_inputs(list(arrays)), with_tokens=True)
    tokens = found.consume_with_handlers([_all] * len(call.ordered_effects), strict=False)
    ended = found.consume_token()
    note(ended)
    call._handle_token_bufs(tokens, ended)
    results: Sequence[jax.Array] = found.consume_with_handlers(handlers)
    return results


def _all(parts: Sequence[jax.Array]) -> Sequence[jax.Array]:
    return parts
