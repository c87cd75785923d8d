"""Record which module each operation of a forward pass belongs to, in the names that XLA keeps."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..step.named_scopes import close_scope, open_scope


@contextmanager
def modules_named() -> Iterator[None]:
    """Record a module's operations in a scope with its name in the calling module, within a `with` block."""
    running: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, inputs: object) -> None:
        if not torch.compiler.is_compiling():
            open_scope(_name_in(running[-1] if running else None, module))
            running.append(module)

    def leave(module: torch.nn.Module, inputs: object, result: object) -> None:
        if not torch.compiler.is_compiling() and running and running[-1] is module:
            running.pop()
            close_scope()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        with warnings.catch_warnings():
            # A module that is compiled in the block has one more scope, and nothing else.
            warnings.filterwarnings("ignore", message=".*when there are global hooks on modules")
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _name_in(parent: torch.nn.Module | None, module: torch.nn.Module) -> str:
    found = parent.named_modules() if parent is not None else iter(())
    return next((name for name, each in found if each is module and name), type(module).__name__)
