"""Layers of LSTM, GRU and simple recurrent networks: each a loop over time, forward and backward.

Computations that do not depend on the previous step are outside of the loop: the products with the layer's input before
it, the gradients of the weights after it. A step of the loop is one matrix product and elementwise operations, which
XLA:CPU fuses into loops over the elements. A fused loop is not vectorized if it overwrites an operand and reads the
gates of this step for several terms. A value that several loops read is fused into none of them.

Sequences of unequal lengths are packed: the rows of all samples at the first time, then at the second, and so on, the
longest sample first. This module lays them out as `[time, sample]`, and a sample that has ended keeps its state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..linear_algebra.matmul import contract, product
from ..machinery.opmath import widened
from ..machinery.registry import lowers

LAYER = "xla::recurrent_layer"
BACKWARD = "xla::recurrent_layer_backward"

Optional = jax.Array | None
State = tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """The constants of a layer: its cell ("lstm", "gru", "rnn_tanh", "rnn_relu") and which weights it has."""

    cell: str
    biased: bool
    projected: bool
    directions: int
    trained: bool  # what the backward computation needs is kept

    @property
    def weights_of_a_direction(self) -> int:
        """Return the number of weights of each direction."""
        return 2 + 2 * self.biased + self.projected

    @property
    def results_kept(self) -> int:
        """Return the number of arrays that a direction keeps for the backward computation."""
        return {"lstm": 2, "gru": 1}.get(self.cell, 0) if self.trained else 0


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one direction."""

    input: jax.Array  # [gates, features]
    hidden: jax.Array  # [gates, size of the hidden state]
    input_bias: Optional
    hidden_bias: Optional
    projection: Optional  # [size of the hidden state, size of the cell]

    def turned(self) -> "Weights":
        """Return these for a loop forwards, with the weights of the hidden state as they are multiplied.

        XLA:CPU would transpose them in memory at every step.
        """
        return replace(self, hidden=self.hidden.T, projection=None if self.projection is None else self.projection.T)

    @staticmethod
    def of(layer: Layer, arrays: Sequence[jax.Array]) -> "Weights":
        """Return those among the arrays of one direction, in PyTorch's order."""
        input_bias, hidden_bias = arrays[2:4] if layer.biased else (None, None)
        return Weights(arrays[0], arrays[1], input_bias, hidden_bias, arrays[-1] if layer.projected else None)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Where the rows of packed sequences belong."""

    valid: jax.Array  # [time, sample]: whether the sample still runs
    rows: jax.Array  # [time, sample]: its row
    times: jax.Array  # [row]
    samples: jax.Array  # [row]

    @staticmethod
    def of(batch_sizes: jax.Array, samples: int, rows: int) -> "PackedRows":
        """Compute the layout from the number of samples that run at each time."""
        ends = jnp.cumsum(batch_sizes)
        starts = ends - batch_sizes
        sample = lax.broadcasted_iota(batch_sizes.dtype, (batch_sizes.shape[0], samples), 1)
        valid = sample < batch_sizes[:, None]
        row = jnp.arange(rows, dtype=batch_sizes.dtype)
        times = jnp.searchsorted(ends, row, side="right")
        return PackedRows(valid, jnp.where(valid, starts[:, None] + sample, 0), times, row - starts[times])

    def unpacked(self, data: jax.Array) -> jax.Array:
        """Return `[row, feature]` as `[time, sample, feature]`, with zeros where nothing was packed."""
        return jnp.where(self.valid[:, :, None], data[self.rows], jnp.zeros((), data.dtype))

    def packed(self, sequence: jax.Array) -> jax.Array:
        """Return `[time, sample, feature]` as `[row, feature]`."""
        return sequence[self.times, self.samples]


def _lstm(gates: jax.Array, state: State, weights: Weights) -> tuple[State, State]:
    hidden, cell = state
    gates = gates + product(hidden, weights.hidden)
    new = jnp.tanh(jnp.split(gates, 4, axis=1)[2])
    # One sigmoid of all gates, although that of the new state is not used: see above.
    enter, forget, _, out = jnp.split(jax.nn.sigmoid(gates), 4, axis=1)
    cell = forget * cell + enter * new
    shown = (out * jnp.tanh(cell)).astype(hidden.dtype)
    if weights.projection is not None:
        shown = product(shown, weights.projection).astype(hidden.dtype)
    return (shown, cell), (jnp.concatenate([enter, forget, new, out], axis=1), cell)


def _gru(gates: jax.Array, state: State, weights: Weights) -> tuple[State, State]:
    hidden = widened(state[0])
    reset, update, new = jnp.split(gates, 3, axis=1)
    from_hidden = product(state[0], weights.hidden)
    if weights.hidden_bias is not None:
        from_hidden = from_hidden + widened(weights.hidden_bias)
    hidden_reset, hidden_update, hidden_new = jnp.split(from_hidden, 3, axis=1)
    reset, update = jax.nn.sigmoid(reset + hidden_reset), jax.nn.sigmoid(update + hidden_update)
    new = jnp.tanh(new + reset * hidden_new)
    shown = (new + update * (hidden - new)).astype(state[0].dtype)
    return (shown,), (jnp.concatenate([reset, update, new, hidden_new], axis=1),)


def _rnn_tanh(gates: jax.Array, state: State, weights: Weights) -> tuple[State, State]:
    return (jnp.tanh(gates + product(state[0], weights.hidden)).astype(state[0].dtype),), ()


def _rnn_relu(gates: jax.Array, state: State, weights: Weights) -> tuple[State, State]:
    return (jnp.maximum(gates + product(state[0], weights.hidden), 0).astype(state[0].dtype),), ()


_STEPS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn_tanh, "rnn_relu": _rnn_relu}


@lowers(LAYER)
def recurrent_layer(
    layer: Layer,
    input: jax.Array,
    batch_sizes: Optional,
    hidden: jax.Array,
    cell: Optional,
    arrays: Sequence[jax.Array],
) -> tuple[Optional, ...]:
    """Return the output, the last hidden state, the last cell state, and for each direction what its gradient needs."""
    packing = None if batch_sizes is None else PackedRows.of(batch_sizes, hidden.shape[1], input.shape[0])
    sequence = input if packing is None else packing.unpacked(input)
    outputs: list[jax.Array] = []
    states: list[State] = []
    kept: list[jax.Array] = []
    for direction in range(layer.directions):
        weights = Weights.of(layer, _part(arrays, direction, layer.weights_of_a_direction))
        start: State = (hidden[direction],) if cell is None else (hidden[direction], widened(cell[direction]))
        valid = None if packing is None else packing.valid
        state, output, saved = _forward(layer, weights, sequence, valid, start, reverse=direction == 1)
        outputs.append(output)
        states.append(state)
        kept.extend(array.astype(input.dtype) for array in saved)
    output = outputs[0] if layer.directions == 1 else jnp.concatenate(outputs, axis=2)
    return (
        output if packing is None else packing.packed(output),
        jnp.stack([state[0] for state in states]),
        None if cell is None else jnp.stack([state[1] for state in states]).astype(cell.dtype),
        *kept,
    )


def _forward(
    layer: Layer, weights: Weights, sequence: jax.Array, valid: Optional, start: State, reverse: bool
) -> tuple[State, jax.Array, State]:
    """Return the last state, the hidden states of all times, and what the backward computation needs of them."""
    step = _STEPS[layer.cell]
    turned = weights.turned()
    gates = contract(sequence, weights.input, ((2,), (1,)))
    if weights.input_bias is not None and weights.hidden_bias is not None:
        gates = gates + widened(weights.input_bias)
        if layer.cell != "gru":
            gates = gates + widened(weights.hidden_bias)

    def advance(state: State, now: tuple[jax.Array, jax.Array | None]) -> tuple[State, tuple[jax.Array, State]]:
        gates, runs = now
        after, saved = step(gates, state, turned)
        if runs is not None:
            after = tuple(jnp.where(runs[:, None], new, old) for new, old in zip(after, state, strict=True))
            if layer.cell == "lstm":
                saved = (saved[0], after[1])
        return after, (after[0], saved if layer.trained else ())

    state, (output, saved) = lax.scan(advance, start, (gates, valid), reverse=reverse)
    return state, output, saved


def _lstm_slopes(activations: jax.Array, before: jax.Array, after: jax.Array) -> State:
    """Return the factors that turn the gradients into those of the gates, then of the cell, then of the cell before."""
    enter, forget, new, out = jnp.split(widened(activations), 4, axis=-1)
    shown = jnp.tanh(widened(after))
    of_gates = [
        new * enter * (1 - enter),
        widened(before) * forget * (1 - forget),
        enter * (1 - new * new),
        shown * out * (1 - out),
    ]
    return *of_gates, out * (1 - shown * shown), forget


def _lstm_back(grads: State, now: State, weights: Weights) -> tuple[State, jax.Array]:
    return _lstm_back_by(grads, _lstm_slopes(*now), weights)


def _lstm_back_by(grads: State, slopes: State, weights: Weights) -> tuple[State, jax.Array]:
    grad_hidden, grad_cell = grads
    *of_gates, of_out, of_cell, of_cell_before = slopes
    if weights.projection is not None:
        grad_hidden = contract(grad_hidden.astype(weights.projection.dtype), weights.projection, ((1,), (0,)))
    grad_cell = grad_hidden * of_cell + grad_cell
    gates = jnp.concatenate([*(grad_cell * slope for slope in of_gates), grad_hidden * of_out], axis=1)
    gates = gates.astype(weights.hidden.dtype)
    return (contract(gates, weights.hidden, ((1,), (0,))), grad_cell * of_cell_before), gates


def _gru_back(grads: State, now: State, weights: Weights) -> tuple[State, jax.Array]:
    activations, before = map(widened, now)
    reset, update, new, hidden_new = jnp.split(activations, 4, axis=1)
    grad_update = grads[0] * (before - new) * update * (1 - update)
    grad_new = grads[0] * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    gates = jnp.concatenate([grad_reset, grad_update, grad_new, grad_new * reset], axis=1).astype(weights.hidden.dtype)
    return (contract(_gates_of_hidden(gates), weights.hidden, ((1,), (0,))) + grads[0] * update,), gates


def _gates_of_hidden(gates: jax.Array) -> jax.Array:
    """Return a GRU's gradients without that of the new state, which reaches the hidden state times the reset gate."""
    size = gates.shape[-1] // 4
    return jnp.concatenate([gates[..., : 2 * size], gates[..., 3 * size :]], axis=-1)


def _rnn_tanh_back(grads: State, now: State, weights: Weights) -> tuple[State, jax.Array]:
    shown = widened(now[0])
    gates = (grads[0] * (1 - shown * shown)).astype(weights.hidden.dtype)
    return (contract(gates, weights.hidden, ((1,), (0,))),), gates


def _rnn_relu_back(grads: State, now: State, weights: Weights) -> tuple[State, jax.Array]:
    gates = jnp.where(now[0] > 0, grads[0], 0).astype(weights.hidden.dtype)
    return (contract(gates, weights.hidden, ((1,), (0,))),), gates


_ThroughTime = tuple[State, jax.Array, Optional]


@dataclass(frozen=True, slots=True)
class _Direction:
    """The backward computation of one direction. Sequences are `[time, sample, feature]`."""

    layer: Layer
    weights: Weights
    valid: Optional
    reverse: bool
    first: State  # the states it started with
    output: jax.Array  # the hidden states
    kept: Sequence[jax.Array]

    def before(self, states: jax.Array, first: jax.Array) -> jax.Array:
        """Return the state that each step found."""
        if not self.reverse:
            return jnp.concatenate([first[None], states[:-1]])
        shifted = jnp.concatenate([states[1:], first[None]])
        if self.valid is None:
            return shifted
        ran = jnp.concatenate([self.valid[1:], jnp.zeros_like(self.valid[:1])])
        return jnp.where(ran[:, :, None], shifted, first)

    def through_time(self, grad_output: Optional, grad_last: State) -> _ThroughTime:
        """Return gradients of the first states, and at all times of the gates and (if projected) of the hidden
        state.
        """
        if self.layer.cell == "gru":
            return self._swept(_gru_back, grad_output, grad_last, (*self.kept, self.before(self.output, self.first[0])))
        if self.layer.cell != "lstm":
            back = _rnn_tanh_back if self.layer.cell == "rnn_tanh" else _rnn_relu_back
            return self._swept(back, grad_output, grad_last, (self.output,))
        activations, cells = self.kept
        values = activations, self.before(cells, self.first[1].astype(cells.dtype)), cells

        def slopes_first(grad_output: Optional, grad_last: State, values: State) -> _ThroughTime:
            # For all times at once, with all threads; it takes memory that accelerators may lack.
            return self._swept(_lstm_back_by, grad_output, grad_last, _lstm_slopes(*values))

        as_needed = partial(self._swept, _lstm_back)
        return lax.platform_dependent(grad_output, grad_last, values, cpu=slopes_first, default=as_needed)

    def _swept(
        self, back: Callable[..., tuple[State, jax.Array]], grad_output: Optional, grad_last: State, values: State
    ) -> _ThroughTime:
        def retreat(grads: State, now: Any) -> tuple[State, tuple[jax.Array, jax.Array | None]]:
            grad_now, runs, values = now
            if grad_now is not None:
                grads = (grads[0] + widened(grad_now), *grads[1:])
            hidden = grads[0].astype(self.output.dtype) if self.layer.projected else None
            before, gates = back(grads, values, self.weights)
            if runs is not None:
                before = tuple(jnp.where(runs[:, None], new, old) for new, old in zip(before, grads, strict=True))
                gates = jnp.where(runs[:, None], gates, jnp.zeros((), gates.dtype))
                hidden = None if hidden is None else jnp.where(runs[:, None], hidden, jnp.zeros((), hidden.dtype))
            return before, (gates, hidden)

        steps = grad_output, self.valid, values
        grad_first, (gates, hidden) = lax.scan(retreat, grad_last, steps, reverse=not self.reverse)
        return grad_first, gates, hidden

    def of_weights(self, input: jax.Array, gates: jax.Array, grad_hidden: Optional) -> list[jax.Array]:
        """Return gradients of the weights, in PyTorch's order: one product over all times each."""
        of_input, of_hidden = _parts_of(self.layer, gates)
        # Parts of the gates would be turned element by element: there the slower product is the faster way.
        products = _over_all_times if of_input is gates else _over_all_times_as_they_lie
        grads = [products(of_input, input), products(of_hidden, self.before(self.output, self.first[0]))]
        if self.layer.biased:
            grads += [jnp.sum(widened(of_input), (0, 1)), jnp.sum(widened(of_hidden), (0, 1))]
        if grad_hidden is not None:
            out = self.kept[0][:, :, 3 * self.kept[0].shape[2] // 4 :]
            shown = (widened(out) * jnp.tanh(widened(self.kept[1]))).astype(input.dtype)
            grads.append(_over_all_times(grad_hidden, shown))
        return grads


def _over_all_times(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Return `[time, sample, m]` by `[time, sample, n]` as `[m, n]`: the products, summed up over all times and
    samples.
    """

    def turned(rows: jax.Array, columns: jax.Array) -> jax.Array:
        # XLA:CPU's fastest product takes matrices whose memory order is that of the product.
        left = lax.optimization_barrier(rows.reshape(-1, rows.shape[2]).T)
        return contract(left, columns.reshape(-1, columns.shape[2]), ((1,), (0,)))

    return lax.platform_dependent(rows, columns, cpu=turned, default=_over_all_times_as_they_lie)


def _over_all_times_as_they_lie(rows: jax.Array, columns: jax.Array) -> jax.Array:
    return contract(rows, columns, ((0, 1), (0, 1)))


def _parts_of(layer: Layer, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of the products with the input, and of those with the hidden state."""
    if layer.cell != "gru":
        return gates, gates
    return gates[..., : 3 * gates.shape[-1] // 4], _gates_of_hidden(gates)


@lowers(BACKWARD)
def recurrent_layer_backward(
    layer: Layer,
    wanted: Sequence[bool],
    grads: Sequence[Optional],
    input: jax.Array,
    batch_sizes: Optional,
    hidden: jax.Array,
    cell: Optional,
    arrays: Sequence[jax.Array],
    output: jax.Array,
    kept: Sequence[jax.Array],
) -> tuple[Optional, ...]:
    """Return gradients of the input, the hidden state, the cell state and the weights; `None` for one that is not
    `wanted`.

    `grads` are those of the output, the last hidden state and the last cell state.
    """
    packing = None if batch_sizes is None else PackedRows.of(batch_sizes, hidden.shape[1], input.shape[0])
    grad_output = grads[0]
    if packing is not None:
        input, output = packing.unpacked(input), packing.unpacked(output)
        grad_output = None if grad_output is None else packing.unpacked(grad_output)
    firsts = [hidden] if cell is None else [hidden, cell]
    lasts = [widened(jnp.zeros_like(a) if g is None else g) for g, a in zip(grads[1:], firsts, strict=False)]
    of_input: list[jax.Array] = []
    of_first: list[State] = []
    of_weights: list[jax.Array] = []
    for index in range(layer.directions):
        features = slice(index * hidden.shape[2], (index + 1) * hidden.shape[2])
        direction = _Direction(
            layer,
            Weights.of(layer, _part(arrays, index, layer.weights_of_a_direction)),
            None if packing is None else packing.valid,
            index == 1,
            tuple(first[index] for first in firsts),
            output[:, :, features],
            _part(kept, index, layer.results_kept),
        )
        grad_now = None if grad_output is None else grad_output[:, :, features]
        grad_first, gates, grad_hidden = direction.through_time(grad_now, tuple(last[index] for last in lasts))
        of_input.append(contract(_parts_of(layer, gates)[0], direction.weights.input, ((2,), (0,))))
        of_first.append(grad_first)
        of_weights += direction.of_weights(input, gates, grad_hidden)
    grad_input = sum(of_input[1:], of_input[0])
    results = (
        grad_input if packing is None else packing.packed(grad_input),
        *(jnp.stack(states) for states in zip(*of_first, strict=True)),
        *(() if cell is not None else (None,)),
        *of_weights,
    )
    narrowed = (None if result is None else result.astype(input.dtype) for result in results)
    return tuple(result if is_wanted else None for result, is_wanted in zip(narrowed, wanted, strict=True))


def _part(arrays: Sequence[object], index: int, count: int) -> Sequence[Any]:
    return arrays[index * count : (index + 1) * count]
