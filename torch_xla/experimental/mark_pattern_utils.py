"""Composites of StableHLO: parts of a model, with a name, that a compiler may replace as a whole."""

import uuid

import torch
from torch import Tensor

from .._engine.lowering.machinery.xla_op_schemas import LIBRARY
from .xla_marker import serialize_composite_attr

assert LIBRARY is not None  # `torch.ops.xla` is defined there


class StableHLOCompositeBuilder:
    """Mark the operations between some tensors as the composite `name` with the attributes `attr`.

    Attributes are numbers, strings, booleans, and lists of one of these. What `exported_program_to_stablehlo` writes,
    and the program that the device runs (`xm.get_stablehlo`), has one `stablehlo.composite` for these operations, and a
    function that computes the same. A name without a namespace gets `torch_xla.` in front. A builder can be used again:
    each call of `mark_inputs` begins another occurrence. Continue with the tensors that its methods return.

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

    def __init__(self, name: str, attr: dict[str, object] | None = None) -> None:
        self.name = name
        self.attr = attr
        self.id = ""
        self._is_open = False

    def mark_inputs(self, *tensors: torch.Tensor) -> Tensor | tuple[Tensor, ...]:
        """Mark the inputs of an occurrence, and return one tensor for one, a tuple for several."""
        self.id = _identity()
        self._is_open = True
        return self._mark(tensors, True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Tensor | tuple[Tensor, ...]:
        """Mark the outputs of that occurrence, and return one tensor for one, a tuple for several.

        Raises `ValueError` if its inputs were not marked, or its outputs were marked already.
        """
        if not self._is_open:
            raise ValueError(
                f"the outputs of composite {self.name!r} are marked by one call of mark_outputs() for each call of "
                "mark_inputs(), which comes first"
            )
        self._is_open = False
        return self._mark(tensors, False)

    def _mark(self, tensors: tuple[torch.Tensor, ...], is_input: bool) -> Tensor | tuple[Tensor, ...]:
        if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            kind = "inputs" if is_input else "outputs"
            raise ValueError(f"mark_{kind}() of composite {self.name!r} takes tensors; got {tensors!r}")
        attributes = None if is_input else _text(self.attr)
        mark = torch.ops.xla.mark_tensor
        marked = tuple(mark(x, self.name, place, self.id, is_input, attributes) for place, x in enumerate(tensors))
        return marked[0] if len(marked) == 1 else marked


# Not traced: a graph of `torch.compile` has the results of the call that traced it.
_text = torch.compiler.assume_constant_result(serialize_composite_attr)
_identity = torch.compiler.assume_constant_result(lambda: uuid.uuid4().hex)
