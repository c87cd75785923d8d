"""Record which module each operation of a forward pass belongs to, in the names that XLA keeps."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..quiet_calls import quiet_block
from ..step.named_scopes import close_scope, open_scope


class _Running(threading.local):
    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []  # that this thread runs, outermost first


@contextmanager
def modules_named() -> Iterator[None]:
    """Record a module's operations in a scope with its name in the calling module, within a `with` block."""
    here = _Running()  # PyTorch calls the hooks in each thread that runs a module

    def enter(module: torch.nn.Module, inputs: object) -> None:
        if not torch.compiler.is_compiling():
            open_scope(_name_in(here.modules[-1] if here.modules else None, module))
            here.modules.append(module)

    def leave(module: torch.nn.Module, inputs: object, result: object) -> None:
        if not torch.compiler.is_compiling() and here.modules and here.modules[-1] is module:
            here.modules.pop()
            close_scope()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        # A module that is compiled in the block has one more scope, and nothing else.
        with quiet_block(message=".*when there are global hooks on modules"):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _name_in(parent: torch.nn.Module | None, module: torch.nn.Module) -> str:
    found = parent.named_modules() if parent is not None else iter(())
    return next((name for name, each in found if each is module and name), type(module).__name__)
