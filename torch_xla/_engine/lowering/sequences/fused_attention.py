"""A call of attention as a fused kernel takes it, and what such a kernel offers."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The operands and options of one attention. The operands have the dimensions (batch, head, row, feature)."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: Any = None

    @property
    def factor(self) -> Any:
        """Return the number that multiplies the scores."""
        return 1 / math.sqrt(max(self.query.shape[-1], 1)) if self.scale is None else self.scale

    @property
    def is_plain(self) -> bool:
        """Return whether it has no mask, no dropout, and a scale that is known when the program is made."""
        return (
            self.bias is None
            and isinstance(self.dropout_p, (int, float))
            and self.dropout_p == 0
            and (self.scale is None or isinstance(self.scale, (int, float)))
        )


class FusedKernel(Protocol):
    """A kernel that computes whole attention; each function returns `None` for a call that the kernel does not take."""

    def attention(self, call: AttentionCall, /) -> tuple[jax.Array, jax.Array] | None:
        """Return the output, and by (batch, head, row) the logarithm of the sum of the exponentials."""

    def gradients(
        self, call: AttentionCall, grad: jax.Array, output: jax.Array, log_sum: jax.Array, /
    ) -> tuple[jax.Array, jax.Array, jax.Array] | None:
        """Return the gradients of query, key and value; `output` and `log_sum` are the results of `attention`."""
