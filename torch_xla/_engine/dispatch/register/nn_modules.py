"""Keep a module's Parameter objects when it moves between the host and `xla`.

So tied weights stay tied, an optimizer made before the move keeps training them, and hooks and attributes stay where
they are. PyTorch does so between devices of one kind of memory and makes new Parameters between others.
"""

import functools
from collections.abc import Callable

import torch
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from ...compat.names import torch as private
from .torchscript import move_parameters


def keeping_parameters(original: Callable[..., Module]) -> Callable[..., Module]:
    """Return `Module._apply`, which moves the parameters of a module in place before PyTorch looks at them."""

    @functools.wraps(original)
    def _apply(self: Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Module:
        if not torch.__future__.get_swap_module_params_on_conversion():
            crosses: dict[tuple[torch.device, torch.dtype], bool] = {}

            def is_moved(parameter: torch.Tensor) -> bool:
                kind = (parameter.device, parameter.dtype)
                if kind not in crosses:
                    crosses[kind] = kind[0].type != "meta" and _crosses(*kind, fn)
                return crosses[kind]

            if isinstance(self, torch.jit.ScriptModule):
                move_parameters(self, fn, is_moved, recurse)
            else:
                for parameter in private.parameters_of(self).values():
                    if parameter is not None and _is_kept(parameter) and is_moved(parameter):
                        move(parameter, fn)
        return original(self, fn, recurse)

    return _apply


def _is_kept(parameter: Parameter) -> bool:
    # Those of lazy modules get their shapes on the device that they are on when they get them.
    return (type(parameter) is Parameter or is_lazy(parameter)) and parameter.device.type != "meta"


def _crosses(device: torch.device, dtype: torch.dtype, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether `fn` moves tensors between the host or another device and `xla`."""
    with torch.no_grad():
        moved = fn(torch.empty(0, dtype=dtype, device=device))
    return isinstance(moved, torch.Tensor) and (moved.device.type == "xla") != (device.type == "xla")


def move(parameter: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Give a parameter or buffer the value and the memory of `fn(parameter)`, and keep the same object."""
    # A parameter that can be trained stays one, also if it is moved in a block of inference.
    with torch.inference_mode(type(parameter) is Parameter and parameter.is_inference()):
        _exchange(parameter, fn)


def _exchange(parameter: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        moved = fn(parameter).detach().requires_grad_(parameter.requires_grad)
        if parameter.grad is not None:
            moved.grad = fn(parameter.grad).requires_grad_(parameter.grad.requires_grad)
    if parameter.requires_grad and type(parameter) is Parameter and not parameter.is_inference():
        # A graph that is still alive belongs to the memory before the move: its gradient must not vanish in silence.
        torch.autograd.graph.get_gradient_edge(parameter).node.register_prehook(_refuse_gradient)
    private.exchange(parameter, moved)


def _refuse_gradient(gradients: object) -> None:
    raise RuntimeError(
        "backward() of a graph that was built before its module moved to another device: the parameters have moved "
        "on. Move the module before the forward pass."
    )
