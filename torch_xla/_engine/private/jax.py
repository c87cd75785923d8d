"""Every private name of JAX that the engine borrows, and why. Nothing else in the package touches one."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax._src.core import ShapedArray
from jax._src.interpreters import pxla
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg

# QR by Householder reflectors, left as they are: `jax.lax.linalg` offers what multiplies them, but not this.
geqrf: Any = _linalg.geqrf


def weakly_typed(scalar: jax.Array, dtype: np.dtype) -> jax.Array:
    """`scalar` as a value that behaves like a Python number in type promotion.

    A number that became an argument of a program must promote as it did when it was baked in, and JAX offers no public
    way to make a traced value weakly typed.
    """
    result: Any = _lax._convert_element_type(scalar, dtype, weak_type=True)
    return result


def put(host: np.ndarray, device: jax.Device) -> jax.Array:
    """A buffer with the contents of `host`, in its dtype whatever `jax_enable_x64` says.

    `jax.device_put` does the same by way of a traced primitive, and takes 100 µs where this takes 4.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)
    # Without x64 the numbers would be narrowed to 32 bits under an array that says it has 64.
    with jax.enable_x64(True):
        result: jax.Array = pxla.batched_device_put(ShapedArray(host.shape, host.dtype), sharding, [host], [device])
    return result


def direct_call(executable: Any) -> Callable[[Sequence[jax.Array]], Sequence[jax.Array]] | None:
    """What runs a compiled program on buffers, if JAX itself would do nothing else; `None` if it would.

    JAX's way looks at type, size and place of each argument, and at its settings, to learn whether it knows this kind
    of call. A program's own buffers are always of the kind it was compiled for.
    """
    call = getattr(getattr(executable, "_executable", None), "unsafe_call", None)
    if not isinstance(call, pxla.ExecuteReplicated):
        return None
    has_effects = call.has_unordered_effects or call.ordered_effects or call.has_host_callbacks or call.mut
    if has_effects or len(call.kept_var_idx) != len(jax.tree.leaves(executable.in_avals)):
        return None
    execute, handlers = call.xla_executable.execute_sharded, call.out_handler.handlers

    def run(buffers: Sequence[jax.Array]) -> Sequence[jax.Array]:
        outputs: Sequence[jax.Array] = execute(buffers).consume_with_handlers(handlers)
        return outputs

    return run


class _Somewhere(source_info_util.SourceInfo):
    """Names and a line of our choice; none for JAX's own jitted functions inside.

    JAX traces such a function once and keeps the lines of its first caller, which then show up at every other one.
    Without lines XLA takes that of the call. While JAX traces one, it sets an empty name stack: that is how it is told.
    """

    __slots__ = ()

    def replace(self, *, traceback: Any = None, name_stack: Any = None) -> source_info_util.SourceInfo:
        inside = name_stack is not None and not name_stack.stack
        known = traceback_at(None) if inside else (traceback or self.traceback)
        return _Somewhere(known, self.name_stack if name_stack is None else name_stack)


@functools.cache
def traceback_at(line: tuple[str, int, str] | None) -> Any:
    """A traceback whose only frame stands at `line` (file, number, function); without `line`, one with none.

    JAX takes the lines of a program from the stack at the time it is traced, which for us is that of the sync; and a
    traceback can only be taken, not made. So a function that claims to stand at that line takes one, in a thread below
    which there is nothing but Python's library, which JAX counts as nobody's.
    """
    file, number, function = line or (threading.__file__, 1, "nowhere")
    if line is not None and not source_info_util.is_user_filename(file):
        source_info_util.register_inclusion(file)  # a library in Python's own folder is still a line of the program
    code = _take.__code__.replace(
        co_filename=file, co_firstlineno=max(1, number), co_name=function, co_qualname=function
    )
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(FunctionType(code, {"get_traceback": source_info_util.Traceback.get_traceback})).result()


_take: Any = lambda: get_traceback()  # type: ignore[name-defined]  # noqa: E731, F821


@contextmanager
def located(line: tuple[str, int, str] | None, names: Sequence[str]) -> Iterator[None]:
    """What JAX traces in this block gets `names` and `line` (file, number, function) as its origin in the program.

    Inside another such block, names follow the outer ones, and without a line of its own it has the outer one's.
    JAX offers named scopes to everybody, but its source lines are those of the Python that traces.
    """
    place = source_info_util._source_info_context
    before = place.context
    stack = before.name_stack
    for name in names:
        stack = stack.extend(name)
    inherits = line is None and isinstance(before, _Somewhere)
    place.context = _Somewhere(before.traceback if inherits else traceback_at(line), stack)
    try:
        yield
    finally:
        place.context = before


def prepare_linear_algebra() -> None:
    """Finds the LAPACK that kernels on the CPU call. Lowering does so, and an executable from disk was not lowered."""
    _linalg.initialize_lapack()
