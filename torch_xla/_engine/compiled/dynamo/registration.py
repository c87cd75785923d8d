"""Register the backend `openxla` of `torch.compile`, and compile what Dynamo hands to it."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import GraphModule

from ...compat.names import torch_saved_graphs
from ...compat.names.torch_dynamo import (
    check_mode_and_options,
    draw_again,
    guard_arguments_of_constants,
    guard_distributed,
    leave_generators_to_python,
    never_trace,
    register_backend,
)
from ...compat.names.torch_dynamo_guards import keep_interrupts
from ...tensor import seeds
from ...tensor.device import current_index
from .backend import compile_unsaved
from .saved_graph import compile_to_save


def register(names: Sequence[str]) -> None:
    """Register this backend under each of `names`."""
    # Kernels in Python are called while Dynamo watches, between graphs and at what it leaves to Python. They, and what
    # they call, are ours to run, not the user's to compile.
    for package in ("torch_xla._engine", "jax", "jaxlib", "ml_dtypes"):
        never_trace(package)
    guard_distributed()
    leave_generators_to_python()
    keep_interrupts()
    guard_arguments_of_constants()
    draw_again(_random_state, _restore_random_state)
    for name in names:
        register_backend(compile_module, name)


def _random_state() -> torch.Tensor:
    return seeds.state_as_tensor(current_index())


def _restore_random_state(state: torch.Tensor) -> None:
    seeds.set_state_from_tensor(state, current_index())


def compile_module(
    module: GraphModule,
    examples: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Compile a graph of PyTorch's functions as Dynamo found it: forward, and backward if there will be one.

    `mode` and `options` are those of `torch.compile`. They tune Inductor's kernels and change no result, so openxla
    accepts what Inductor knows and does nothing with it; what Inductor does not know is refused as Inductor does.
    """
    check_mode_and_options(mode, options)
    if torch_saved_graphs.is_saving():
        return compile_to_save(module, examples)
    return compile_unsaved(module, examples)
