"""Small tools for programs on `xla` devices: synthetic data for benchmarks, environment, timing, threads."""

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from .._engine import config, pytree
from .._engine.pytree import DataWrapper as DataWrapper

R = TypeVar("R")
T = TypeVar("T")

Print = Callable[..., object]


class Cleaner:
    """Call a function when this object is garbage-collected.

    >>> from torch_xla.utils.utils import Cleaner
    >>> cleaner = Cleaner(lambda: print("swept"))
    >>> del cleaner
    swept
    """

    def __init__(self, func: Callable[[], object]) -> None:
        self.func = func

    def __del__(self) -> None:
        self.func()


class LazyProperty(Generic[T]):
    """A value that is computed at the first access.

    >>> from torch_xla.utils.utils import LazyProperty
    >>> answer = LazyProperty(lambda: print("thinking") or 42)
    >>> answer.value, answer.value
    thinking
    (42, 42)
    """

    def __init__(self, gen_fn: Callable[[], T]) -> None:
        self._gen_fn: Callable[[], T] | None = gen_fn
        self._value: T

    @property
    def value(self) -> T:
        """Return the result of the function."""
        if self._gen_fn is not None:
            self._value = self._gen_fn()
            self._gen_fn = None
        return self._value


class TmpFolder:
    """A temporary folder, at the path `name`, that is removed together with this object.

    >>> import os
    >>> from torch_xla.utils.utils import TmpFolder
    >>> folder = TmpFolder()
    >>> os.path.isdir(folder.name)
    True
    """

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()
        self.cleaner = Cleaner(partial(shutil.rmtree, self.name, ignore_errors=True))


class SampleGenerator(Generic[T]):
    """A loader that yields the same data `sample_count` times in each iteration.

    >>> import torch
    >>> from torch_xla.utils.utils import SampleGenerator
    >>> loader = SampleGenerator((torch.zeros(8, 3), torch.ones(8)), sample_count=2)
    >>> len(loader), len(list(loader)), len(list(loader))
    (2, 2, 2)
    """

    def __init__(self, data: T, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> "SampleGenerator[T]":
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> T:
        return self.next()

    def next(self) -> T:
        """Return the data once more; raise `StopIteration` after `sample_count` times."""
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data


class FnDataGenerator(Generic[T, R]):
    """A loader of `count` pairs: data from `gen_tensor(batch_size, *dims)`, and `func(data)` as its target.

    >>> import torch
    >>> from torch_xla.utils.utils import FnDataGenerator
    >>> [(data, target)] = FnDataGenerator(lambda x: x * 2, 3, torch.ones, dims=[2])
    >>> data.shape, target[0]
    (torch.Size([3, 2]), tensor([2., 2.]))
    """

    def __init__(
        self,
        func: Callable[[T], R],
        batch_size: int,
        gen_tensor: Callable[..., T],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._batch_size = batch_size
        self._gen_tensor = gen_tensor
        self._dims = list(dims) if dims else [1]
        self._count = count
        self._emitted = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> "FnDataGenerator[T, R]":
        return FnDataGenerator(self._func, self._batch_size, self._gen_tensor, self._dims, self._count)

    def __next__(self) -> tuple[T, R]:
        return self.next()

    def next(self) -> tuple[T, R]:
        """Return the next pair; raise `StopIteration` after `count` of them."""
        if self._emitted >= self._count:
            raise StopIteration
        self._emitted += 1
        data = self._gen_tensor(self._batch_size, *self._dims)
        return data, self._func(data)


def as_list(t: object) -> Sequence[object]:
    """Return `t` if it is a list or a tuple, else a list with `t` in it.

    >>> from torch_xla.utils.utils import as_list
    >>> as_list(1), as_list((1, 2))
    ([1], (1, 2))
    """
    return t if isinstance(t, list | tuple) else [t]


def getenv_as(name: str, type: Callable[[str], object], defval: object = None) -> object:
    """Return the environment variable `name` as a `type`, or `defval`. A `bool` is written as a number.

    >>> from torch_xla.utils.utils import getenv_as
    >>> getenv_as("NUMBER_OF_BATCHES", int, 10)
    10
    """
    text = config.variable(name)
    if text is None:
        return defval
    return bool(int(text)) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether the environment variable `name` (if not set, `default`) is "true" or a positive number.

    >>> from torch_xla.utils.utils import check_env_flag
    >>> check_env_flag("WITH_PROFILE"), check_env_flag("WITH_PROFILE", "true")
    (False, True)
    """
    text = config.variable(name)
    text = default if text is None else text
    return text.lower() == "true" or (text.isdecimal() and int(text) > 0)


def for_each_instance(value: object, select_fn: Callable[[object], bool], fn: Callable[[Any], object]) -> None:
    """Call `fn` once with each object that `select_fn` accepts in lists, tuples, sets, dicts (and keys), attributes.

    >>> from torch_xla.utils.utils import for_each_instance
    >>> for_each_instance({"a": [1, "one"], "b": (2,)}, lambda v: isinstance(v, int), print)
    1
    2
    """
    pytree.visit(value, select_fn, fn)


def for_each_instance_rewrite(value: object, select_fn: Callable[[object], bool], fn: Callable[[Any], Any]) -> Any:
    """Replace each object in `value` that `select_fn` accepts by `fn(object)`, and copy the containers of such objects.

    >>> from torch_xla.utils.utils import for_each_instance_rewrite
    >>> for_each_instance_rewrite({"a": [1, "one"], "b": (2,)}, lambda v: isinstance(v, int), lambda v: v * 10)
    {'a': [10, 'one'], 'b': (20,)}
    """
    return pytree.rewrite(value, select_fn, fn)


def shape(inputs: object) -> list[int]:
    """Return the lengths of nested lists or tuples, from the outermost inwards.

    Raises `ValueError` if lists at the same depth differ in length.

    >>> from torch_xla.utils.utils import shape
    >>> shape([[1, 2, 3], [4, 5, 6]])
    [2, 3]
    """
    if not isinstance(inputs, list | tuple):
        return []
    inner = [shape(each) for each in inputs]
    if any(other != inner[0] for other in inner):
        raise ValueError(f"shape(): expected parts of one shape; got {inner}")
    return [len(inputs), *(inner[0] if inner else [])]


def flatten_nested_tuple(inputs: object) -> tuple[object, ...]:
    """Return the elements of nested tuples and lists in one tuple.

    >>> from torch_xla.utils.utils import flatten_nested_tuple
    >>> flatten_nested_tuple((1, (2, [3, (4,)])))
    (1, 2, 3, 4)
    """
    return tuple(_leaves(inputs))


def _leaves(inputs: object) -> Iterator[object]:
    if isinstance(inputs, list | tuple):
        for each in inputs:
            yield from _leaves(each)
    else:
        yield inputs


def list_copy_append(ilist: Sequence[object], item: object) -> list[object]:
    """Return a new list: the items of `ilist`, then `item`.

    >>> from torch_xla.utils.utils import list_copy_append
    >>> list_copy_append([1, 2], 3)
    [1, 2, 3]
    """
    return [*ilist, item]


def null_print(*args: object, **kwargs: object) -> None:
    """Accept the arguments of `print`, and print nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print to the standard error."""
    print(*args, **{"file": sys.stderr, **kwargs})


def get_print_fn(debug: object = None) -> Print:
    """Return `eprint` if `debug`, else `null_print`. By default the environment variable `DEBUG`, a number, decides.

    >>> from torch_xla.utils.utils import get_print_fn
    >>> get_print_fn(debug=False)("loading")
    """
    if debug is None:
        debug = getenv_as("DEBUG", int, 0)
    return eprint if debug else null_print


def timed(fn: Callable[[], T], msg: str = "", printfn: Print | None = eprint) -> T:
    """Return the result of `fn()`, and print the time it took. `printfn=None` is `get_print_fn()`.

    >>> from torch_xla.utils.utils import timed
    >>> timed(lambda: 1 + 1, "adding took ", print)
    adding took ...ms
    2
    """
    start = time.perf_counter()
    result = fn()
    (printfn or get_print_fn())(f"{msg}{1000 * (time.perf_counter() - start):.3f}ms")
    return result


class TimedScope:
    """Measure the time of a `with` block and print it at the end, with the error that was set or that ended the block.

    >>> from torch_xla.utils.utils import TimedScope
    >>> with TimedScope("loading took ", print) as scope:
    ...     scope.set_error("one file was missing")
    loading took ...ms; ERROR: one file was missing
    """

    def __init__(self, msg: str = "", printfn: Print | None = eprint) -> None:
        self._msg = msg
        self._print = printfn or get_print_fn()
        self._error: object = None

    def set_error(self, error: object) -> None:
        """Set the error that is printed with the time of the block."""
        self._error = error

    def __enter__(self) -> "TimedScope":
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        taken = 1000 * (time.perf_counter() - self._start)
        failed = self._error if self._error is not None else error
        self._print(f"{self._msg}{taken:.3f}ms" + ("" if failed is None else f"; ERROR: {failed}"))


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Return `n` different TCP ports of this machine that are free.

    >>> from torch_xla.utils.utils import get_free_tcp_ports
    >>> len(set(get_free_tcp_ports(3)))
    3
    """
    with ExitStack() as stack:
        # All are held until the last is found, or one would be found twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def parallel_work(num_workers: int, fn: Callable[..., T], *args: Iterable[object]) -> list[T]:
    """Return `list(map(fn, *args))`, computed by `num_workers` threads.

    >>> from torch_xla.utils.utils import parallel_work
    >>> parallel_work(2, pow, [2, 3, 4], [2, 2, 2])
    [4, 9, 16]
    """
    with ThreadPoolExecutor(max_workers=num_workers) as executor:
        return list(executor.map(fn, *args))
