"""Attention of sequences that are packed one behind the other, or whose keys are on pages, and its gradient.

A row attends to the keys of its own sequence, and among them to one interval, which causality and a window decide. So
`cum_seq_q` and `cum_seq_k` become two numbers for each row: its first column and the one behind its last. They are
values of the program: one program serves all divisions of the same total. `max_q` and `max_k` decide nothing.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.registry import lowers
from . import flash_attention_on_tpu
from .fused_attention import AttentionCall
from .tiled_attention import SIDE, Tiles, Tiling, backward, forward

aten = torch.ops.aten


class _Intervals(Tiles):
    """Scores of rows that see one interval of the columns each, from `first` up to and without `end`.

    `slopes`, by (head, row), takes away what the distance of a column from the column `home` is worth.
    """

    def __init__(
        self,
        operands: tuple[jax.Array, jax.Array, jax.Array],
        scale: object,
        interval: tuple[jax.Array, jax.Array],
        bias: tuple[jax.Array, jax.Array] | None = None,
    ) -> None:
        query, key, value = operands
        rows, columns = (min(each.shape[2], SIDE) for each in (query, key))
        first, end = interval
        is_empty = first >= end
        first = jnp.where(is_empty, np.int32(key.shape[2]), first)
        end = jnp.where(is_empty, np.int32(0), end)
        self._first = _padded_with(first, rows, key.shape[2])
        self._end = _padded_with(end, rows, 0)
        lowest = jnp.min(self._first.reshape(-1, rows), -1) // columns
        highest = -(-jnp.max(self._end.reshape(-1, rows), -1) // columns)
        most = -(-key.shape[2] // columns)
        order = jnp.minimum(lowest[:, None] + lax.iota(np.int32, most), most - 1)
        counts = jnp.maximum(highest - lowest, 0)
        super().__init__(query, key, value, scale, Tiling(rows, columns, order, counts))
        self._bias = None
        if bias is not None:
            slopes, home = bias
            self._bias = self.padded_rows(slopes, 1), _padded_with(home, rows, 0)

    def changed(self, row: object, column: object, plain: jax.Array) -> jax.Array:
        if self._bias is None:
            return plain
        slopes, home = self.rows_of(self._bias[0], row, 1), self.rows_of(self._bias[1], row, 0)
        distance = jnp.abs(self.column_numbers(column) - home[:, None])
        return plain - slopes[:, :, None].astype(plain.dtype) * distance.astype(plain.dtype)

    def masked(self, row: object, column: object) -> jax.Array:
        columns = self.column_numbers(column)
        first, end = (self.rows_of(each, row, 0)[:, None] for each in (self._first, self._end))
        return (columns >= first) & (columns < end)


def _padded_with(array: jax.Array, side: int, fill: int) -> jax.Array:
    return lax.pad(array, jnp.asarray(fill, array.dtype), [(0, -array.shape[0] % side, 0)])


def _sequences(cumulative: jax.Array, total: int) -> tuple[jax.Array, jax.Array]:
    """Return for each of `total` rows the number of its sequence and its place in it.

    Rows behind the last sequence count as one sequence more, numbered like their places from its end.
    """
    rows = lax.iota(np.int32, total)
    sequence = jnp.searchsorted(cumulative[1:], rows, side="right").astype(np.int32)
    return sequence, rows - cumulative[sequence]


def _interval(
    queries: tuple[jax.Array, int],
    keys: tuple[jax.Array, jax.Array | None],
    sides: tuple[int | None, int | None],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the first column of each row, the one behind its last, its own column, and its sequence.

    The last query of a sequence belongs to the last key: that is how causality and windows count.
    """
    (cumulative, total), (starts, used) = queries, keys
    cumulative = cumulative.astype(np.int32)
    sequence, place = _sequences(cumulative, total)
    is_padding = sequence >= cumulative.shape[0] - 1
    sequence = jnp.minimum(sequence, cumulative.shape[0] - 2)
    start = starts.astype(np.int32)[sequence]
    lengths = starts[1:] - starts[:-1] if used is None else used
    length = lengths.astype(np.int32)[sequence]
    own = place + length - (cumulative[1:] - cumulative[:-1])[sequence]
    left, right = sides
    first = jnp.zeros_like(own) if left is None else jnp.maximum(own - left, 0)
    end = length if right is None else jnp.minimum(own + right + 1, length)
    return start + first, jnp.where(is_padding, start + first, start + end), start + own, sequence


def _packed(array: jax.Array) -> jax.Array:
    """Return (row, head, feature) as (1, head, row, feature)."""
    return jnp.swapaxes(array, 0, 1)[None]


def _unpacked(array: jax.Array) -> jax.Array:
    return jnp.swapaxes(array[0], 0, 1)


def _from_pages(pages: jax.Array, table: jax.Array) -> jax.Array:
    """Return the keys of all sequences one behind the other, each with the length of all its pages."""
    count, length = table.shape[0], table.shape[1] * pages.shape[1]
    return pages[table].reshape(count * length, *pages.shape[2:])


@dataclass(frozen=True, slots=True)
class _Call:
    """The operands and options that the attention and its gradient have in common.

    Without `cum_seq_q` the sequences have one length, and the operands the dimensions (batch, row, head, feature).
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    cum_seq_q: jax.Array | None
    cum_seq_k: jax.Array | None
    is_causal: bool
    scale: object
    window: tuple[int | None, int | None]
    seqused_k: jax.Array | None = None
    alibi_slopes: jax.Array | None = None
    block_table: jax.Array | None = None

    def __post_init__(self) -> None:
        for name in ("cum_seq_q", "cum_seq_k", "seqused_k", "block_table"):
            given: jax.Array | None = getattr(self, name)
            if given is not None and given.dtype != np.int32:  # as CUDA's kernel refuses
                raise RuntimeError(
                    f"_flash_attention_forward: {name} must have dtype int32; got {given.dtype}. "
                    f"Convert it: {name}.to(torch.int32)."
                )

    @property
    def is_packed(self) -> bool:
        return self.cum_seq_q is not None

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """Return how many columns before its own a row sees, and how many behind it; `None` for all."""
        left, right = (None if each is None or each < 0 else int(each) for each in self.window)
        return left, 0 if self.is_causal else right

    def heads_first(self, array: jax.Array) -> jax.Array:
        """Return rows of the operands' dimensions by (batch, head, row, feature)."""
        return _packed(array) if self.is_packed else jnp.swapaxes(array, 1, 2)

    def rows_first(self, array: jax.Array) -> jax.Array:
        return _unpacked(array) if self.is_packed else jnp.swapaxes(array, 1, 2)

    def tiles(self) -> _Intervals:
        key, value, cum_seq_q, cum_seq_k = self.key, self.value, self.cum_seq_q, self.cum_seq_k
        if self.block_table is not None:
            length = self.block_table.shape[1] * key.shape[1]
            cum_seq_k = lax.iota(np.int32, self.block_table.shape[0] + 1) * np.int32(length)
            key, value = (_from_pages(each, self.block_table) for each in (key, value))
        query, key, value = (self.heads_first(each) for each in (self.query, key, value))
        heads, total = query.shape[1:3]
        if cum_seq_q is None or cum_seq_k is None:
            cum_seq_q, cum_seq_k = (jnp.asarray(np.array([0, each.shape[2]], np.int32)) for each in (query, key))
        interval = _interval((cum_seq_q, total), (cum_seq_k, self.seqused_k), self.sides)
        first, end, own, sequence = interval
        bias = None
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes[:, None] if self.alibi_slopes.ndim == 1 else self.alibi_slopes[sequence].T
            bias = jnp.broadcast_to(slopes, (heads, total)), own
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        return _Intervals((query, key, value), scale, (first, end), bias)

    def kernel(self) -> "_Kernel | None":
        """Return the TPU's kernel if it computes this attention.

        It has no windows. Its causal mask compares places among all rows and columns, which are those within a sequence
        where queries and keys are divided alike: one tensor says both.
        """
        starts, of_keys = self.cum_seq_q, self.cum_seq_k
        extras = self.seqused_k, self.alibi_slopes, self.block_table
        if starts is None or of_keys is None or any(each is not None for each in extras):
            return None
        is_causal = self.sides == (None, 0)
        if not is_causal and self.sides != (None, None):
            return None
        if is_causal and (starts is not of_keys or self.query.shape[0] != self.key.shape[0]):
            return None
        query, key, value = (_packed(each) for each in (self.query, self.key, self.value))
        call = AttentionCall(query, key, value, is_causal=is_causal, scale=self.scale)
        return _Kernel(call, starts, of_keys) if flash_attention_on_tpu.takes(call) else None


class _Kernel:
    """The TPU's kernel for packed sequences, whose segments are the sequences."""

    def __init__(self, call: AttentionCall, cum_seq_q: jax.Array, cum_seq_k: jax.Array) -> None:
        self._call = call
        rows, _ = _sequences(cum_seq_q.astype(np.int32), call.query.shape[2])
        columns, _ = _sequences(cum_seq_k.astype(np.int32), call.key.shape[2])
        count = cum_seq_q.shape[0] - 1
        lengths = cum_seq_k[1:] - cum_seq_k[:-1]
        self._sees_nothing = (rows >= count) | (lengths[jnp.minimum(rows, count - 1)] == 0)
        # The padding behind the last sequence is a segment of rows that no column is in.
        self._segments = rows[None], jnp.where(columns >= count, np.int32(-1), columns)[None]

    def forward(self) -> tuple[jax.Array, jax.Array]:
        """Return the output by (row, head, feature) and the logarithms by (head, row)."""
        output, log_sum = flash_attention_on_tpu.forward(self._call, self._segments)
        output = jnp.where(self._sees_nothing[:, None], jnp.zeros((), output.dtype), output)
        return _unpacked(output), jnp.where(self._sees_nothing, -jnp.inf, log_sum)[0]

    def backward(self, grad: jax.Array, output: jax.Array, log_sum: jax.Array) -> tuple[jax.Array, ...]:
        """Return the gradients of query, key and value by (row, head, feature)."""
        finite = jnp.where(self._sees_nothing, np.float32(0), log_sum)[None]
        found = flash_attention_on_tpu.backward(self._call, _packed(grad), _packed(output), finite, self._segments)
        return tuple(_unpacked(each) for each in found)


@lowers(aten._flash_attention_forward.default)
def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cum_seq_q: jax.Array | None,
    cum_seq_k: jax.Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: object = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    block_table: jax.Array | None = None,
    num_splits: int | None = None,
) -> tuple[jax.Array, ...]:
    window = window_size_left, window_size_right
    extras = seqused_k, alibi_slopes, block_table
    call = _Call(query, key, value, cum_seq_q, cum_seq_k, is_causal, scale, window, *extras)
    kernel = call.kernel()
    if kernel is not None:
        output, logarithm = kernel.forward()
    else:
        output, logarithm, _ = forward(call.tiles())
        output, logarithm = call.rows_first(output), logarithm[0] if call.is_packed else logarithm
    state = jnp.zeros(2, np.uint64), jnp.zeros((), np.uint64)
    return output, logarithm.astype(np.float32), *state, jnp.zeros(0, query.dtype)


@lowers(aten._flash_attention_backward.default)
def flash_attention_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: jax.Array | None,
    cum_seq_k: jax.Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: jax.Array,
    unused: jax.Array,
    *,
    scale: object = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    window = window_size_left, window_size_right
    call = _Call(query, key, value, cum_seq_q, cum_seq_k, is_causal, scale, window)
    kernel = call.kernel()
    grads = (
        kernel.backward(grad_out, out, logsumexp)
        if kernel is not None
        else _backward_in_tiles(call, grad_out, out, logsumexp)
    )
    grad_query, grad_key, grad_value = (
        each.astype(of.dtype) for each, of in zip(grads, (query, key, value), strict=True)
    )
    return grad_query, grad_key, grad_value


def _backward_in_tiles(call: _Call, grad_out: jax.Array, out: jax.Array, logsumexp: jax.Array) -> tuple[jax.Array, ...]:
    tiles = call.tiles()
    if tiles.dtype == np.float64:
        logsumexp = forward(tiles)[1]  # PyTorch keeps it in float32
    elif call.is_packed:
        logsumexp = logsumexp[None]
    *grads, _ = backward(tiles, call.heads_first(out), logsumexp, call.heads_first(grad_out))
    return tuple(call.rows_first(each) for each in grads)
