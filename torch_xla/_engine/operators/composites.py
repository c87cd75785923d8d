"""Composite operators taken whole: one node each, and one in the backward pass, instead of a chain of reshapes.

PyTorch knows the gradient of such an operator but no forward-mode derivative. So while somebody computes with dual
numbers, PyTorch composes it again, of operators that have one.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from ..dispatch.kernels import recorder
from ..private import torch as private

# `matmul` is none of them: its whole form has no second derivative either.
_NAMES = ("linear",)

_KERNELS = {name: recorder(f"aten::{name}") for name in _NAMES}
_registered: list[torch.library.Library] = []


def register_whole() -> None:
    """Registers the kernels, and takes them back while a level of dual numbers is open."""
    _register()
    forward_ad.enter_dual_level = _entering(forward_ad.enter_dual_level)
    forward_ad.exit_dual_level = _leaving(forward_ad.exit_dual_level)


def _register() -> None:
    library = private.raw_library("aten")
    for name, kernel in _KERNELS.items():
        private.register_kernel(library, name, kernel)
    _registered.append(library)


def _entering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter_dual_level() -> Any:
        level = original()
        while _registered:
            private.unregister(_registered.pop())
        return level

    return enter_dual_level


def _leaving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def exit_dual_level(*, level: Any = None) -> None:
        original(level=level)
        if forward_ad._current_level < 0 and not _registered:
            _register()

    return exit_dual_level
