"""`torch.xla.make_graphed_callables`: functions and modules whose forward and backward passes are captured graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ...compat.names.torch import pytree
from ...tensor.storage import snapshot, wrap
from .graphs import XLAGraph, graph, graph_pool_handle


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Return functions or modules that replay graphs of what they do with `sample_args`, forwards and backwards.

    Later arguments need the sizes, the dtypes and the `requires_grad` of the sample's. Unlike those of CUDA, results of
    earlier calls keep their values.

    >>> import torch, torch_xla
    >>> model = torch.nn.Linear(4, 2, device="xla")
    >>> graphed = torch.xla.make_graphed_callables(model, (torch.randn(3, 4, device="xla"),))
    >>> graphed(torch.ones(3, 4, device="xla")).sum().backward()
    >>> model.bias.grad
    tensor([3., 3.], device='xla:0')
    """
    if torch.is_autocast_enabled("xla") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables: autocast keeps converted weights, which a graph would not convert again. Write "
            "torch.autocast('xla', cache_enabled=False)"
        )
    several = isinstance(callables, tuple)
    functions = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    pool = pool or graph_pool_handle()
    made = [_Passes(function, *_flat(sample)) for function, sample in zip(functions, samples, strict=True)]
    for each in made:
        each.warm_up(num_warmup_iters, allow_unused_input)
    for each in made:
        each.capture_forward(pool)
    for each in reversed(made):  # as a backward pass runs through them
        each.capture_backward(pool, allow_unused_input)
    graphed = tuple(_in_place_of(each) for each in made)
    return graphed if several else graphed[0]


def _flat(sample: tuple[object, ...]) -> tuple[list[torch.Tensor], Any]:
    leaves, structure = pytree.tree_flatten(sample)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"make_graphed_callables: expected tensors as arguments, got {type(leaf).__name__}, which a graph "
                f"could not follow. Bind it with functools.partial"
            )
    return leaves, structure


@dataclass
class _Passes:
    """The graphs of one function, and the tensors that they read and write."""

    function: Any
    arguments: list[torch.Tensor]
    structure: Any

    def __post_init__(self) -> None:
        if isinstance(self.function, torch.nn.Module):
            self._refuse_hooks(self.function)
            self.parameters = list(self.function.parameters())
            self.is_training = self.function.training
        else:
            self.parameters = []
        self.inputs = [*self.arguments, *self.parameters]
        self.differentiated = [each for each in self.inputs if each.requires_grad]
        self.backward: XLAGraph | None = None
        self.gradients: list[torch.Tensor | None] = []
        self.given: list[torch.Tensor] = []

    @staticmethod
    def _refuse_hooks(module: torch.nn.Module) -> None:
        hooks = "_backward_hooks", "_forward_hooks", "_forward_pre_hooks"
        if any(getattr(module, name) for name in hooks):
            raise RuntimeError(
                "make_graphed_callables: the module has hooks, which run once and not at each replay. Register hooks "
                "on it afterwards"
            )
        if any(buffer.requires_grad for buffer in module.buffers()):
            raise RuntimeError("make_graphed_callables: a buffer requires a gradient. Make it a parameter")

    def _outputs(self) -> tuple[list[torch.Tensor], Any]:
        leaves, structure = pytree.tree_flatten(self.function(*pytree.tree_unflatten(self.arguments, self.structure)))
        return leaves, structure

    def _differentiate(
        self, outputs: list[torch.Tensor], given: list[torch.Tensor], allow_unused: bool
    ) -> list[torch.Tensor | None]:
        if not outputs or not self.differentiated:
            return [None for _ in self.inputs]
        found = iter(torch.autograd.grad(outputs, self.differentiated, given, allow_unused=allow_unused))
        return [next(found) if each.requires_grad else None for each in self.inputs]

    def warm_up(self, iterations: int, allow_unused: bool) -> None:
        """Run both passes, for what the first calls do once."""
        for _ in range(iterations):
            outputs = [each for each in self._outputs()[0] if each.requires_grad]
            self._differentiate(outputs, [torch.zeros_like(each) for each in outputs], allow_unused)

    def capture_forward(self, pool: tuple[int, int]) -> None:
        """Capture the function."""
        self.forward = XLAGraph()
        with graph(self.forward, pool):
            self.outputs, self.returned = self._outputs()

    def capture_backward(self, pool: tuple[int, int], allow_unused: bool) -> None:
        """Capture the derivative."""
        outputs = [each for each in self.outputs if each.requires_grad]
        self.given = [torch.zeros_like(each) for each in outputs]
        if outputs and self.differentiated:
            self.backward = XLAGraph()
            with graph(self.backward, pool):
                self.gradients = self._differentiate(outputs, self.given, allow_unused)


class _Replayed(torch.autograd.Function):
    """A call of the graphs of a function."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.passes = passes
        for own, given in zip(passes.arguments, inputs, strict=False):
            if own is not given:
                own.detach().copy_(given)
        passes.forward.replay()
        outputs = tuple(map(_now, passes.outputs))
        ctx.mark_non_differentiable(
            *[new for new, own in zip(outputs, passes.outputs, strict=True) if not own.requires_grad]
        )
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        passes: _Passes = ctx.passes
        of_outputs = [each for each, own in zip(gradients, passes.outputs, strict=True) if own.requires_grad]
        for own, given in zip(passes.given, of_outputs, strict=True):
            own.copy_(given)
        if passes.backward is None:
            raise RuntimeError("backward: no output of the graphed callable depends on what requires a gradient")
        passes.backward.replay()
        return None, *[None if each is None else _now(each) for each in passes.gradients]


def _now(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor shows, in memory that the next replay does not write to."""
    return wrap(snapshot(tensor.detach()))


def _in_place_of(passes: _Passes) -> Any:
    """Return the module, whose `forward` replays from now on, or a function that does."""

    def graphed(*args: object) -> Any:
        leaves, structure = pytree.tree_flatten(args)
        sizes, expected = [list(each.shape) for each in leaves], [list(each.shape) for each in passes.arguments]
        if structure != passes.structure or sizes != expected:
            raise RuntimeError(
                f"graphed callable: expected arguments of sizes {expected}, as the sample's, got {sizes}. A graph has "
                f"one size: pad the arguments, or make another graph"
            )
        outputs = _Replayed.apply(passes, *leaves, *passes.parameters)
        return pytree.tree_unflatten(outputs, passes.returned)

    function = passes.function
    if not isinstance(function, torch.nn.Module):
        return graphed
    original: Callable[..., Any] = function.forward

    def forward(*args: object, **kwargs: object) -> Any:
        # Dropout and the like are captured as they were.
        same = function.training == passes.is_training and not kwargs
        return graphed(*args) if same else original(*args, **kwargs)

    function.forward = forward
    return function
