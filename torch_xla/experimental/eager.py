"""Eager mode, and the functions that stay compiled under it. Documented as `torch_xla.experimental.eager_mode`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .._engine.compiled import compiled_function, eager


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off: whether each operation runs when it is called, instead of being recorded.

    An operation is compiled the first time it is called with operands of some shapes, and takes some 50 µs from then
    on. What shows an operand in another order, and a write through a view, belong to the operation; constants wait for
    the first operation that reads them. Functions under `torch_xla.compile` are recorded and run as a whole. It holds
    for all threads. `XLA_USE_EAGER_DEBUG_MODE=1` turns it on at the import.

    >>> import torch, torch_xla
    >>> torch_xla.experimental.eager_mode(True)
    >>> x = torch.arange(3.0, device="xla") + 1
    >>> torch_xla._XLAC._check_tensor_need_materialization([x])
    [False]
    >>> torch_xla.experimental.eager_mode(False)
    """
    eager.switch(enable)


def is_eager_mode() -> bool:
    """Whether operations run when they are called; `False` inside a function under `torch_xla.compile`.

    >>> import torch_xla
    >>> torch_xla.experimental.is_eager_mode()
    False
    """
    return eager.is_on()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A `with` block in which eager mode is on, or off.

    >>> import torch_xla
    >>> with torch_xla.experimental.eager_mode_context(True):
    ...     torch_xla.experimental.is_eager_mode()
    True
    """
    with eager.switched(enable):
        yield


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    num_different_graphs_allowed: int | None = None,
    *,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, bool | int | float | str] | None = None,
    replay: bool | None = None,
) -> Any:
    """`f` as one graph: a step ends before each call of it and after. Without `f`, a decorator and a `with` block.

    `full_graph=True` raises `RuntimeError` where a value is needed before the end. With
    `num_different_graphs_allowed=n` (or `max_different_graphs=n`, which later versions say) the call that records graph
    number n + 1 raises `RuntimeError`. `name` stands for `f` in messages. Under `torch_xla.experimental.eager_mode`
    operations inside `f` are recorded. `custom_compile_options` are options of XLA's, such as
    `{"xla_cpu_enable_fast_math": True}`, for the programs of `f`, over those of `torch_xla.set_custom_compile_options`.

    A replay does not run `f`. Its program reads the parameters, buffers, optimizer state and arguments as they are
    then, and writes what `f` would have written: parameters, gradients, random state. Where anything that `f` can see
    differs (a Python number in its closure, its globals, a module or an optimizer; another kind of argument) it is run
    and recorded. What has effects besides, or needs numbers from Python that change at every call, is never replayed;
    the attribute `why_recorded` of what is returned says why the last call was recorded ("" if it was replayed).

    A function of tensors and plain values is replayed after 16 calls and some more that do the same, in one process,
    without a debugger, where its program is the one that it was recorded with. `replay=True` asks for it: after three
    calls that do the same, wherever it can be, and a warning says why it is not. `replay=False` has `f` run at every
    call.
    `docs/compiled_modes.md` has the whole contract.

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
