"""What PyTorch/XLA 2 needed to share a process with JAX, by its names. Here the client is JAX's own."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import ParamSpec, TypeVar

import jax

from .._engine.runtime import platform

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def jax_import_guard() -> None:
    """Starts the client, on the platform that this package would choose, so that JAX uses the same."""
    platform.local_devices()


def requires_jax(func: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A decorator: the client runs before `func` is called."""

    @functools.wraps(func)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        jax_import_guard()
        return func(*args, **kwargs)

    return call


@contextmanager
def jax_env_context() -> Iterator[None]:
    """A `with` block that changes nothing: JAX needs no other environment than this package."""
    yield


def maybe_get_jax(log: bool = True) -> ModuleType:
    """The module `jax`, which is always there."""
    return jax


def maybe_get_torchax() -> None:
    """`None`: torchax, another package, is not used. `torch_xla.interop` has what programs used it for."""
