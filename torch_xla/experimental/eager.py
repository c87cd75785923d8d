"""Eager mode, and the functions that stay compiled under it. Documented as `torch_xla.experimental.eager_mode`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .._engine.compiled import compiled_function, eager


def eager_mode(enable: bool) -> None:
    """Turn eager mode on or off. In eager mode each operation runs when it is called, instead of being recorded.

    An operation is compiled the first time it is called with operands of some shapes, and takes some 50 µs from then
    on. Views of an operand, and a write through a view, are a part of the operation's program. Constants are computed
    by the first operation that reads them. Functions under `torch_xla.compile` are recorded and run as a whole. The
    mode applies to all threads. `XLA_USE_EAGER_DEBUG_MODE=1` turns it on at import.

    >>> import torch, torch_xla
    >>> torch_xla.experimental.eager_mode(True)
    >>> x = torch.arange(3.0, device="xla") + 1
    >>> torch_xla._XLAC._check_tensor_need_materialization([x])
    [False]
    >>> torch_xla.experimental.eager_mode(False)
    """
    eager.switch(enable)


def is_eager_mode() -> bool:
    """Return whether operations run when they are called; `False` inside a function under `torch_xla.compile`.

    >>> import torch_xla
    >>> torch_xla.experimental.is_eager_mode()
    False
    """
    return eager.is_on()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Turn eager mode on or off within a `with` block.

    >>> import torch_xla
    >>> with torch_xla.experimental.eager_mode_context(True):
    ...     torch_xla.experimental.is_eager_mode()
    True
    """
    with eager.switched(enable):
        yield


def compile(
    f: Callable[..., object] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    num_different_graphs_allowed: int | None = None,
    *,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, bool | int | float | str] | None = None,
    replay: bool | None = None,
) -> Any:
    """Run each call of `f` as one graph: a step ends before the call and after it.

    Without `f`, return a decorator, which is also a context manager for a `with` block.

    `full_graph=True` raises `RuntimeError` if a value is read before the end of the call. With
    `num_different_graphs_allowed=n` (or `max_different_graphs=n`, its name in later versions) the call that records
    graph number n + 1 raises `RuntimeError`. `name` is the name of `f` in messages. Under
    `torch_xla.experimental.eager_mode`, operations inside `f` are recorded. `custom_compile_options` are options of
    XLA, such as `{"xla_cpu_enable_fast_math": True}`, for the programs of `f`. They take precedence over those of
    `torch_xla.set_custom_compile_options`.

    A replay does not run `f`. Its program reads the current parameters, buffers, optimizer state and arguments, and
    writes everything that `f` would have written: parameters, gradients, random state. If anything that `f` can see
    differs (a Python number in its closure, its globals, a module or an optimizer; another kind of argument), `f` is
    run and recorded. A function with other effects, or with numbers from Python that change at every call, is never
    replayed. The attribute `why_recorded` of the returned function is the reason why the last call was recorded ("" if
    it was replayed).

    By default, a function of tensors and plain values is replayed after 16 calls and some more that do the same, in a
    program of one process, without a debugger, as long as its program is the recorded one. With `replay=True` it is
    replayed after three calls that do the same, wherever possible, and a warning explains why it is not. With
    `replay=False`, `f` runs at every call. `docs/compiled_modes.md` has the whole contract.

    >>> import torch, torch_xla
    >>> @torch_xla.compile
    ... def normalise(x):
    ...     return (x - x.mean()) / x.std()
    >>> normalise(torch.tensor([1.0, 2.0, 3.0], device="xla")).tolist()
    [-1.0, 0.0, 1.0]
    >>> total = torch.zeros((), device="xla")
    >>> @torch_xla.compile(replay=True)
    ... def count(x):
    ...     total.add_(x.sum())
    >>> for _ in range(10):
    ...     count(torch.ones(3, device="xla"))
    >>> total.item(), count.why_recorded
    (30.0, '')
    """
    most = num_different_graphs_allowed if max_different_graphs is None else max_different_graphs
    return compiled_function.compiled(f, name or "", full_graph, most, replay, custom_compile_options)
