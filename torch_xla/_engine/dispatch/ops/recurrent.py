"""LSTM, GRU and simple recurrent networks: one recorded operation per layer, forward and backward.

PyTorch composes them of cells, several operations for each step in time. That composition still serves for whatever is
unusual: wrong arguments (it has the messages), second derivatives, `torch.func`, forward mode, tracing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch
from torch import Tensor
from torch.nn import Parameter

from ... import dtypes
from ...atomic import uncollected
from ...caching.interning import table_of_plans
from ...compat.names import torch as private
from ...ir.call_plan import Operand, Plan
from ...ir.tape import Value
from ...ir.value_spec import Spec, contiguous_stride, spec_of
from ...lowering.machinery.lower_call import apply_rule
from ...lowering.sequences.recurrent_layers import BACKWARD, LAYER, Layer
from ...tensor.storage import snapshot, wrap
from ..recording_kernel import append

aten = torch.ops.aten

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

_plans: dict[tuple[Any, ...], Plan] = {}
table_of_plans(_plans)


def _record(op: str, *arguments: object) -> list[Tensor | None]:
    """Record an operation of our own, whose arguments may be tensors and lists of tensors."""
    values: list[Value] = []
    placed = _placed(arguments, values)
    specs = tuple(value.spec for value in values)
    key = (op, placed, specs)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(op, placed, specs)
    results = iter(append(plan, ([], [*values], []), values[0].device))
    return [None if count == -2 else wrap(next(results)) for count in plan.structure]


def _placed(argument: object, values: list[Value]) -> Any:
    # Not inside the function above: one that calls itself would hold the values until the next garbage collection.
    if isinstance(argument, Tensor):
        values.append(snapshot(argument))
        return Operand(len(values) - 1)
    if isinstance(argument, (list, tuple)):
        return tuple(_placed(element, values) for element in argument)
    return argument


@uncollected
def _plan(op: str, arguments: tuple[object, ...], operands: tuple[Spec, ...]) -> Plan:
    plan = Plan(op, (arguments, {}), operands, (), ())
    shapes = [jax.ShapeDtypeStruct(spec.size, dtypes.to_jax(spec.dtype)) for spec in operands]
    with jax.enable_x64(True):
        results = jax.eval_shape(lambda *arrays: apply_rule(plan, arrays, [], None), *shapes)
    outputs = tuple(
        spec_of(result.shape, contiguous_stride(result.shape), dtypes.to_torch(result.dtype))
        for result in results
        if result is not None
    )
    return replace(plan, outputs=outputs, structure=tuple(-2 if result is None else -1 for result in results))


class RecurrentLayer(torch.autograd.Function):
    """One layer, both directions. Returns the output, the last hidden state and (of an LSTM) the last cell state."""

    @staticmethod
    def forward(
        ctx: Any, layer: Layer, batch_sizes: Tensor | None, input: Tensor, hidden: Tensor, cell: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        """Record the layer."""
        sizes = None if batch_sizes is None else batch_sizes.to(input.device)
        output, *states = _record(LAYER, layer, input, sizes, hidden, cell, weights)
        ctx.layer, ctx.batch_sizes = layer, batch_sizes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, hidden, cell, output, sizes, *weights, *states[2:])
        return output, states[0], states[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Record the gradients, by PyTorch's composition if they will be differentiated, or are many at once."""
        input, hidden, cell, output, sizes, *rest = ctx.saved_tensors
        layer: Layer = ctx.layer
        count = layer.directions * layer.weights_of_a_direction
        weights, kept = rest[:count], rest[count:]
        are_many = any(grad is not None and private.is_batch_of_gradients(grad) for grad in grads)
        if torch.is_grad_enabled() or are_many:
            return None, None, *_differentiable_gradients(layer, ctx.batch_sizes, grads, input, hidden, cell, weights)
        wanted = ctx.needs_input_grad[2:]
        results = _record(BACKWARD, layer, wanted, grads, input, sizes, hidden, cell, weights, output, kept)
        return None, None, *results


def _differentiable_gradients(
    layer: Layer, batch_sizes: Tensor | None, grads: Sequence[Tensor | None], *operands: Any
) -> list[Tensor | None]:
    input, hidden, cell, weights = operands
    tensors = [input, hidden, cell, *weights]
    are_differentiated = torch.is_grad_enabled()
    with torch.enable_grad():
        # An alias of each: the gradient stops there even if one operand was computed from another.
        aliases: list[Any] = [None if t is None else t.view_as(t) for t in tensors]
        input, hidden, cell, *weights = aliases
        both = layer.directions == 2
        network = _Network(layer.cell, input, batch_sizes, hidden, cell, weights, layer.biased, 1, 0.0, True, both)
        results = [r for r, grad in zip(network.composed(), grads, strict=False) if grad is not None]
    wanted = [alias for alias in aliases if alias is not None and alias.requires_grad]
    given = [grad for grad in grads if grad is not None]
    found = iter(torch.autograd.grad(results, wanted, given, create_graph=are_differentiated, allow_unused=True))
    return [next(found) if alias is not None and alias.requires_grad else None for alias in aliases]


@dataclass(frozen=True, slots=True)
class _Network:
    """A call of `torch.lstm` or one of its siblings. The input is `[time, sample, feature]`, or packed."""

    cell_type: str
    input: Tensor
    batch_sizes: Tensor | None
    hidden: Tensor
    cell: Tensor | None
    weights: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool

    def composed(self) -> Any:
        """Return PyTorch's composition."""
        state: Any = self.hidden if self.cell is None else [self.hidden, self.cell]
        flags = self.has_biases, self.num_layers, self.dropout, self.train, self.bidirectional
        packet = getattr(aten, self.cell_type)
        if self.batch_sizes is not None:
            return packet.data.decompose(self.input, self.batch_sizes, state, self.weights, *flags)
        return packet.input.decompose(self.input, state, self.weights, *flags, False)

    @property
    def directions(self) -> int:
        """Return how many times each layer goes over its input."""
        return 2 if self.bidirectional else 1

    def layer(self) -> Layer | None:
        """Return the common description of its layers; `None` if the composition must handle the call."""
        tensors = [self.input, self.hidden, *(() if self.cell is None else (self.cell,)), *self.weights]
        dtype = self.input.dtype
        plain = all(t.__class__ in (Tensor, Parameter) and t.dtype is dtype and t.device.type == "xla" for t in tensors)
        if not plain or not dtype.is_floating_point or private.calls_are_watched():
            return None
        per_direction, rest = divmod(len(self.weights), self.num_layers * self.directions)
        projected = self.cell_type == "lstm" and per_direction == 3 + 2 * self.has_biases
        layer = Layer(
            self.cell_type,
            self.has_biases,
            projected,
            self.directions,
            torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        )
        return layer if not rest and per_direction == layer.weights_of_a_direction and self._fits(layer) else None

    def _fits(self, layer: Layer) -> bool:
        samples = self.input.shape[1] if self.batch_sizes is None else int(self.batch_sizes[0])
        features, size, count = self.input.shape[-1], self.hidden.shape[-1], self.num_layers * self.directions
        wide = self.weights[-1].shape[-1] if layer.projected else size
        gates = _GATES[self.cell_type] * wide
        states = [self.hidden.shape == (count, samples, size)]
        if self.cell is not None:
            states.append(self.cell.shape == (count, samples, wide))
        per_direction = layer.weights_of_a_direction
        for index in range(count):
            first = features if index < self.directions else size * self.directions
            shapes = [(gates, first), (gates, size), *[(gates,)] * (2 * layer.biased)]
            shapes += [(size, wide)] * layer.projected
            own = self.weights[index * per_direction : (index + 1) * per_direction]
            states += [weight.shape == shape for weight, shape in zip(own, shapes, strict=True)]
        return all(states) and self.input.numel() > 0 and gates > 0

    def run(self) -> tuple[Tensor, ...]:
        """Return the output and the last states, recorded layer by layer."""
        if self.input.dim() and not self.input.shape[0]:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        layer = self.layer() if self.input.dim() == (3 if self.batch_sizes is None else 2) else None
        if layer is None:
            return tuple(self.composed())
        count = layer.weights_of_a_direction * self.directions
        output = self.input
        last: list[Any] = []
        for index in range(self.num_layers):
            first = [self._of_layer(state, index) for state in (self.hidden, self.cell)]
            weights = self.weights[index * count : (index + 1) * count]
            output, *finals = RecurrentLayer.apply(layer, self.batch_sizes, output, *first, *weights)
            last.append(finals)
            if self.dropout and self.train and index < self.num_layers - 1:
                output = torch.dropout(output, self.dropout, True)
        states = [column for column in zip(*last, strict=True) if column[0] is not None]
        return output, *(column[0] if self.num_layers == 1 else torch.cat(column) for column in states)

    def _of_layer(self, state: Tensor | None, index: int) -> Tensor | None:
        if state is None or self.num_layers == 1:
            return state
        return state.narrow(0, index * self.directions, self.directions)


def _split(cell_type: str, state: Any) -> tuple[Any, Any]:
    return tuple(state) if cell_type == "lstm" else (state, None)  # type: ignore[return-value]


def _kernel(cell_type: str) -> Callable[..., Any]:
    def kernel(
        input: Tensor, state: object, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if batch_first:
            input = input.transpose(0, 1)
        network = _Network(cell_type, input, None, *_split(cell_type, state), params, has_biases, num_layers, dropout,
                           train, bidirectional)  # fmt: skip
        output, *states = network.run()
        return (output.transpose(0, 1) if batch_first else output, *states)

    return kernel


def _packed_kernel(cell_type: str) -> Callable[..., Any]:
    def kernel(
        data: Tensor, batch_sizes: Tensor, state: object, params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        network = _Network(cell_type, data, batch_sizes, *_split(cell_type, state), params, has_biases, num_layers,
                           dropout, train, bidirectional)  # fmt: skip
        return network.run()

    return kernel


def register_recurrent() -> list[torch.library.Library]:
    """Take over the networks before PyTorch composes them of cells."""
    libraries = []
    for dispatch_key in ("AutogradPrivateUse1", "PrivateUse1"):
        library = torch.library.Library("aten", "IMPL", dispatch_key)
        for cell_type in _GATES:
            library.impl(f"{cell_type}.input", _kernel(cell_type), dispatch_key)
            library.impl(f"{cell_type}.data", _packed_kernel(cell_type), dispatch_key)
        libraries.append(library)
    return libraries
