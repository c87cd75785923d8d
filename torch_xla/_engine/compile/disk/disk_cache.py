"""The disk cache: find an executable by what its program computes, without lowering or compiling it.

Each file of the folder (`cache_folder`) holds one executable. A damaged one is reported, deleted and compiled again. A
file that another user may have written is reported and left alone.
"""

import contextlib
import functools
import hashlib
import json
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ... import metrics
from ...compat.names import jax as private
from ...ir.sharding import MANUAL, Sharding, sharding_by
from ...lowering.machinery.jax_sharding import to_jax
from ...runtime import abstract_devices
from ...runtime.device_assignment import Target
from .. import shard_mapped
from ..executable_key import Key, described, differences
from ..jax_function import Signature, results_of
from . import (
    artifacts,
    bundle_machine,
    cache_folder,
    compile_turn,
    executable_format,
    folder_limit,
    prefetch,
    process_consensus,
    remote_store,
    signing_key,
)
from .executable_format import Described, Foreign, Header, Refused, Unreadable

# Reading a file costs about as much as compiling what compiles in less.
WORTH_KEEPING_SECONDS = 0.05
# The largest note beside an executable, in bytes.
_LONGEST_NOTE = 1 << 20

# The end of warnings about executables that are not kept.
_NO_TURNS = (
    "Each process compiles what it does not find there. Another file system, or a folder on each machine, ends this."
)
_FOREIGN = (
    "Such programs are compiled again. `python -m torch_xla.cache import` signs programs from a source you trust; "
    "users and machines that share a folder share a key (XLA_PERSISTENT_CACHE_KEY)."
)

_misses: "deque[tuple[str, str]]" = deque(maxlen=256)


@dataclass(frozen=True, slots=True)
class Stored:
    """An executable read from disk."""

    executable: Any
    seconds: float  # what compiling it took


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A file whose executable XLA has loaded."""

    header: Header
    executable: Any


def find(key: Key, signature: Signature) -> Stored | None:
    """Return the executable with this key and signature, if one was kept.

    One for a topology loads only on a machine that has these devices.
    """
    place = cache_folder.folder()
    if place is None or key.target.is_compile_only:
        return None
    path = place / _name(key)
    loaded = _found(key, signature, place, path)
    if process_consensus.is_needed(key.target) and not process_consensus.have(
        key, "" if loaded is None else loaded.header.start
    ):
        if loaded is not None:
            _miss(key.name, "another process of the program does not have it")
        return None
    if loaded is None:
        return None
    metrics.count("PersistentCacheHit")
    artifacts.note(path.name)
    prefetch.note(place, path.name)
    with contextlib.suppress(OSError):
        os.utime(path)
    return Stored(loaded.executable, loaded.header.seconds)


def _found(key: Key, signature: Signature, place: Path, path: Path) -> _Loaded | None:
    program = key.name
    try:
        cache_folder.bring(place, path.name)
        executable_format.refuse_others(place, place.stat())
        loaded = prefetch.take(path.name, key.target) or _load(path, key.target)
        return _Loaded(loaded.header, _checked(loaded, key, signature))
    except FileNotFoundError:
        _miss(program, _why_missing(place, key))
    except OSError as error:
        _miss(program, f"{path} cannot be read: {error}")
    except Foreign as error:
        _miss(program, f"{error}, and an executable is code")
        cache_folder.warn("foreign", f"{error}, and an executable is code", _FOREIGN)
    except Refused as error:
        _miss(program, f"{error}, and an executable is code")
        cache_folder.warn("refused", f"Compiled programs in {place} are not used: {error}, and an executable is code")
    except Exception as error:  # a damaged executable may fail in any way inside XLA
        _miss(program, f"{path.name} was damaged ({type(error).__name__}: {str(error)[:200]}) and is compiled again")
        folder_limit.delete(path)
    return None


@functools.cache
def foresee(target: Target) -> None:
    """Start to read the executables that this command used the last time, and warn of bundles for other machines."""
    place = cache_folder.folder()
    if target.is_compile_only:
        return
    for text in () if abstract_devices.active else bundle_machine.found_elsewhere(target):
        warnings.warn(text, stacklevel=2)
    with contextlib.suppress(OSError, Refused):  # reported when a program is looked up
        if place is not None:
            executable_format.refuse_others(place, place.stat())
            prefetch.begin(place, target, _load)


def _load(path: Path, target: Target) -> _Loaded:
    header, executable = executable_format.split(
        executable_format.contents(path), functools.partial(signing_key.verify, path)
    )
    if {name: header.environment.get(name) for name in described(target)} != described(target):
        raise Unreadable("it is of other devices")
    if b"lapack_" in executable:
        private.prepare_linear_algebra()
    return _Loaded(header, private.load(executable, _devices(target)))


def _devices(target: Target) -> Sequence[jax.Device]:
    return target.devices if target.mesh is not None else (target.device,)


def _checked(loaded: _Loaded, key: Key, signature: Signature) -> Any:
    """Return the executable of a file, if it is what its name says and takes and gives what the program does."""
    header = loaded.header
    if header.program != key.name or header.environment != key.environment:
        raise Unreadable("it is of another program than its name says")
    wanted = _described(signature.inputs), _described(signature.outputs), signature.donated
    if (header.inputs, header.outputs, header.donated) != wanted:
        raise Unreadable("its executable takes or gives other values than the program")
    weak = frozenset(header.weak)
    target = key.target
    divided = [_sharding(dims) for dims in header.divided] if target.is_spread else [None] * len(signature.outputs)
    outputs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=index in weak, sharding=to_jax(sharding, target))
        for index, (each, sharding) in enumerate(zip(signature.outputs, divided, strict=True))
    ]
    for wanted_one, found_one in zip(signature.outputs, outputs, strict=True):
        if wanted_one.sharding is not None and wanted_one.sharding != found_one.sharding:
            raise Unreadable("its executable divides what it gives otherwise than the program")
    inputs: Sequence[jax.ShapeDtypeStruct] = signature.inputs
    if target.axis is not None:
        inputs, outputs = shard_mapped.around(inputs, outputs, target)
    return private.compiled_from(loaded.executable, header.name, _devices(target), inputs, outputs, signature.donated)


# The axes of values that differ on each device.
_EACH = ((0,), (0,))


def _sharding(dims: tuple[tuple[int, ...], ...]) -> Sharding | None:
    return MANUAL if dims == _EACH else sharding_by(dims)


def _dims(sharding: Sharding | None) -> tuple[tuple[int, ...], ...]:
    if sharding is None:
        return ()
    return _EACH if sharding.is_manual else sharding.dims


def _described(values: tuple[jax.ShapeDtypeStruct, ...]) -> Described:
    return tuple((tuple(each.shape), each.dtype.name) for each in values)


def keep(key: Key, executable: Any, seconds: float, signature: Signature, program_seconds: float = 0.0) -> None:
    """Write an executable that took `seconds` to compile, unless that is too short or the folder must not be used.

    A stage is written, too, if its whole program took long enough to compile: `program_seconds`.
    """
    place, is_here = _folder_of(key), not key.target.is_compile_only
    is_worth = not is_here or max(seconds, program_seconds) >= WORTH_KEEPING_SECONDS
    if place is None or cache_folder.is_read_only() or not is_worth:
        return
    try:
        found = private.serialised(executable)
        divided = results_of(executable, signature, key.target)
    except Exception as error:  # some plugins cannot serialise, some programs hold what cannot be
        text = f"A program of this backend cannot be kept on disk: {type(error).__name__}: {error}"
        cache_folder.warn("serialise", text)
        return
    header = Header(
        key.name,
        key.environment,
        seconds,
        len(found.data),
        found.name,
        _described(signature.inputs),
        _described(signature.outputs),
        tuple(map(_dims, divided)),
        found.weak,
        signature.donated,
        _start(key, found.data) if process_consensus.is_needed(key.target) else "",
    )
    path = place / _name(key)
    try:
        is_there = cache_folder.keep(path, executable_format.joined(header, found.data, signing_key.signature))
    except (OSError, Refused) as error:
        cache_folder.warn("write", f"Compiled programs cannot be kept in {place}: {error}")
        return
    if is_there:
        metrics.count("PersistentCacheWrite")
    if is_there and is_here:
        artifacts.note(path.name)
        prefetch.note(place, path.name)


def _start(key: Key, executable: bytes) -> str:
    """Return what processes with the same executable have in common: their start, or the executable of a bundle."""
    return hashlib.sha256(executable).hexdigest()[:32] if key.target.is_compile_only else process_consensus.start()


def _folder_of(key: Key) -> Path | None:
    """Return the folder to write to. Programs for a topology have their own: a process here must not run them.

    The compiler for a GPU that is not here has not measured kernels, for example.
    """
    place = cache_folder.folder()
    return place / cache_folder.TOPOLOGIES if place is not None and key.target.is_compile_only else place


def turn(key: Key) -> contextlib.AbstractContextManager[bool]:
    """Let one process at a time compile what was not found for `key`; the others wait here until it has finished.

    Gives whether another process may have written the executable meanwhile. Processes that compile a common program
    agree about that themselves (`process_consensus`).
    """
    place, name = cache_folder.folder(), _name(key)
    with contextlib.suppress(OSError, Refused):  # reported when the executable is looked up or written
        is_apart = key.target.is_compile_only or process_consensus.is_needed(key.target)
        if place is not None and not cache_folder.is_read_only() and not is_apart:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            executable_format.refuse_others(place, place.stat())
            path, written = place / compile_turn.FOLDER / name, (place / name, place / f"{name}.numbers")
            here = compile_turn.held(path, functools.partial(cache_folder.warn, "turn", advice=_NO_TURNS), written)
            store = cache_folder.store_behind()
            return here if store is None else _turn_of_all(here, store, [each.name for each in written])
    return contextlib.nullcontext(False)


@contextlib.contextmanager
def _turn_of_all(
    here: contextlib.AbstractContextManager[bool], store: remote_store.RemoteStore, written: list[str]
) -> Iterator[bool]:
    """Hold the turn of this machine, and then that of all that have the store: one process of each asks for it."""
    with here as may_be_here:
        if may_be_here:
            yield True
            return
        with store.turn(written[0], written) as may_be_there:
            yield may_be_there


def note_baked(key: Key, indices: list[int]) -> None:
    """Record which numbers of a program must be constants: known after lowering, and needed to find it again."""
    place = _folder_of(key)
    if place is not None and not cache_folder.is_read_only():
        with contextlib.suppress(OSError, Refused):
            if cache_folder.keep(place / f"{_name(key)}.numbers", json.dumps(indices).encode()):
                artifacts.note(f"{_name(key)}.numbers")


def baked(key: Key, count: int) -> list[int]:
    """Return the numbers noted by `note_baked`, of a program that has `count`."""
    place = _folder_of(key)
    if place is None:
        return []
    try:
        cache_folder.bring(place, f"{_name(key)}.numbers")
        executable_format.refuse_others(place, place.stat())
        found = json.loads(executable_format.contents(place / f"{_name(key)}.numbers", _LONGEST_NOTE))
    except (OSError, ValueError, RecursionError, Refused, Unreadable):
        return []
    if not (isinstance(found, list) and all(type(index) is int and 0 <= index < count for index in found)):
        return []
    artifacts.note(f"{_name(key)}.numbers")
    return found


def misses() -> list[tuple[str, str]]:
    """Return the latest programs that were not found on disk, and why, oldest first."""
    return list(_misses)


def _name(key: Key) -> str:
    text = json.dumps(key.environment, sort_keys=True)
    return f"{key.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}{cache_folder.SUFFIX}"


def _miss(program: str, reason: str) -> None:
    metrics.count("PersistentCacheMiss")
    _misses.append((program, reason))


def _why_missing(place: Path, key: Key) -> str:
    best: list[str] | None = None
    for name in cache_folder.listing.of(place, key.name, cache_folder.SUFFIX):
        with contextlib.suppress(OSError, Refused, Unreadable):
            differs = differences(executable_format.header_of(place / name).environment, key.environment)
            if best is None or len(differs) < len(best):
                best = differs
    return "never compiled here" if best is None else f"compiled under another environment: {'; '.join(best)}"
