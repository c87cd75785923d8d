"""Composites of StableHLO: parts of a model, with a name, that a compiler may replace as a whole."""

import uuid
from typing import Any

import torch

from .._engine.lowering.machinery.xla_op_schemas import LIBRARY
from .xla_marker import serialize_composite_attr

assert LIBRARY is not None  # `torch.ops.xla` is defined there


class StableHLOCompositeBuilder:
    """Mark the operations between some tensors as the composite `name` with the attributes `attr`.

    Attributes are numbers and strings. `exported_program_to_stablehlo` then writes one `stablehlo.composite` for these
    operations, and a function that computes the same. Use one builder for each occurrence, and continue with the
    tensors that its methods return.

    >>> import torch
    >>> from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
    >>> from torch_xla.stablehlo import exported_program_to_stablehlo
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         builder = StableHLOCompositeBuilder("mine.scaled_tanh", {"scale": 2.0})
    ...         x = builder.mark_inputs(x)
    ...         return builder.mark_outputs(2.0 * torch.tanh(x))
    >>> program = exported_program_to_stablehlo(torch.export.export(Model(), (torch.ones(2),)))
    >>> 'stablehlo.composite "mine.scaled_tanh"' in program.get_stablehlo_text()
    True
    """

    def __init__(self, name: str, attr: dict[str, Any] | None = None) -> None:
        self.name = name
        self.attr = attr
        self.id = uuid.uuid4().hex
        self._marked: set[bool] = set()

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """Mark the inputs, and return one tensor, or a tuple for several. Raises `ValueError` when called twice."""
        return self._mark(tensors, True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """Mark the outputs, and return one tensor, or a tuple for several. Raises `ValueError` when called twice."""
        return self._mark(tensors, False)

    def _mark(self, tensors: tuple[torch.Tensor, ...], is_input: bool) -> Any:
        kind = "inputs" if is_input else "outputs"
        if is_input in self._marked:
            raise ValueError(f"the {kind} of composite {self.name!r} are marked already; each use has its own builder")
        if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise ValueError(f"mark_{kind}() of composite {self.name!r} takes tensors; got {tensors!r}")
        self._marked.add(is_input)
        attributes = None if is_input else serialize_composite_attr(self.attr)
        mark = torch.ops.xla.mark_tensor
        marked = tuple(mark(x, self.name, place, self.id, is_input, attributes) for place, x in enumerate(tensors))
        return marked[0] if len(marked) == 1 else marked
