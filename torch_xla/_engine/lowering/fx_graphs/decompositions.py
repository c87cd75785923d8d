"""Operators that PyTorch decomposes into smaller ones: lower them whole by lowering the pieces."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ...compat.names import torch as private
from ...compat.names.torch import (
    DynamicOutputShapeException,
    OpOverload,
    core_aten_decompositions,
    get_decompositions,
    pytree,
)
from ..machinery.registry import Promotion, Rule, add_rule, rule_of
from ..random_numbers.random import RANDOM_BETWEEN
from . import interpreter

aten = torch.ops.aten

_serial = itertools.count()
_LARGEST = torch.iinfo(torch.int64).max


def _uniform(size: object, **options: object) -> object:
    return aten.uniform.default(aten.empty.memory_format(size, **options))


def _normal(size: object, **options: object) -> object:
    return aten.normal_functional.default(aten.empty.memory_format(size, **options))


def _integers(low: int, high: int, size: object, dtype: torch.dtype | None = None, **options: object) -> object:
    return _between(low, high, aten.empty.memory_format(size, dtype=dtype or torch.int64, **options))


def _between(low: int, high: int, memory: object) -> torch.Tensor:
    # Not `random.from`: a graph of PyTorch is Python source, in which `from` is no name.
    if high - low > _LARGEST:
        wide: torch.Tensor = RANDOM_BETWEEN(memory, low, high)
        return wide
    numbers = aten.random.to(memory, high - low)
    return aten.add.Scalar(numbers, low) if low else numbers


# Random numbers in new memory, which PyTorch composes below the level at which graphs are traced.
_FILLED: dict[object, Callable[..., object]] = {
    aten.rand.default: _uniform,
    aten.randn.default: _normal,
    aten.rand_like.default: lambda x, **options: aten.uniform.default(aten.empty_like.default(x, **options)),
    aten.randn_like.default: lambda x, **options: aten.normal_functional.default(aten.empty_like.default(x, **options)),
    aten.randint.default: lambda high, size, **options: _integers(0, high, size, **options),
    aten.randint.low: _integers,
    aten.randint_like.default: lambda x, high, **options: _between(0, high, aten.empty_like.default(x, **options)),
    aten.randint_like.low_dtype: lambda x, low, high, **options: _between(
        low, high, aten.empty_like.default(x, **options)
    ),
}


def _cholesky_solve(right: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    batch = torch.broadcast_shapes(right.shape[:-2], factor.shape[:-2])
    expanded = (each.expand(*batch, *each.shape[-2:]) for each in (right, factor))
    solved: torch.Tensor = aten._cholesky_solve_helper.default(*expanded, upper)
    return solved


def _resized(op: OpOverload) -> Callable[..., Any]:
    """Return the form of a resizing operator that takes a size or scales."""

    def resize(x: torch.Tensor, size: Any, *options: Any) -> Any:
        *options_of_both, scales = options
        if size is None:
            size = [_scaled(count, scale) for count, scale in zip(x.shape[2:], scales, strict=True)]
        call: Any = op if rule_of(op) is not None else get_decompositions([op])[op]
        return call(x, size, *options_of_both, *(scales or [None] * len(size)))

    return resize


# So large a denominator times a size of images is still far from the largest number.
_MOST_PARTS = 4096


def _scaled(count: int, scale: float) -> int:
    if isinstance(count, int):
        return int(count * scale)
    numerator, denominator = float(scale).as_integer_ratio()
    if denominator > _MOST_PARTS:
        raise NotImplementedError(
            f"an image of a size that changes is resized by {scale}, which is no fraction with a denominator of "
            f"{_MOST_PARTS} or less: give such a scale, or the size: F.interpolate(x, size=...)"
        )
    return count * numerator // denominator


_RESIZING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip

# Operators that PyTorch decomposes only in C++.
_COMPOSED: dict[object, Callable[..., object]] = {
    aten.cholesky_solve.default: _cholesky_solve,
    **{getattr(aten, name).vec: _resized(getattr(aten, name).default) for name in _RESIZING},
}


def table() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of the operators that have no rule.

    Some operators exist only after a module of PyTorch's was imported, so the table may grow.
    """
    arrived = {private.operator_if_defined(name): decomposition for name, decomposition in _LATER.items()}
    return {**_table(), **{op: decomposition for op, decomposition in arrived.items() if op is not None}}


@functools.cache
def _table() -> dict[object, Callable[..., object]]:
    # Operators with a rule stay whole, also inside other decompositions.
    table = {**core_aten_decompositions(), **_FILLED, **_COMPOSED}
    return {op: decomposition for op, decomposition in table.items() if rule_of(op) is None}


def _packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> object:
    left, right = window_size or (-1, -1)
    pages = {"block_table": block_table} if block_table is not None else {}  # unknown to PyTorch 2.11
    options = {"scale": scale, "window_size_left": left, "window_size_right": right, "seqused_k": seqused_k, **pages}
    # Nothing depends on the longest sequences, which would make a program for each.
    operands = query, key, value, cu_seq_q, cu_seq_k, 0, 0
    output, logarithms, *_ = aten._flash_attention_forward.default(*operands, 0.0, is_causal, False, **options)
    return output, logarithms, torch.zeros(2, dtype=torch.uint64, device=query.device)


def _packed_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: torch.Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> object:
    left, right = window_size or (-1, -1)
    operands = grad_out, query, key, value, out, lse, cu_seq_q, cu_seq_k, 0, 0
    return aten._flash_attention_backward.default(
        *operands, 0.0, is_causal, rng_state, rng_state, scale=scale, window_size_left=left, window_size_right=right
    )


_LATER: dict[str, Callable[..., object]] = {
    "torch_attn::_varlen_attn": _packed_attention,
    "torch_attn::_varlen_attn_backward": _packed_attention_backward,
}


def _decomposition(op: OpOverload) -> Callable[..., object] | None:
    found = table().get(op) or get_decompositions([op]).get(op)
    return found if callable(found) else None


def exists(op: OpOverload) -> bool:
    """Return whether PyTorch can decompose `op`; whether the parts can be lowered depends on the call."""
    return _decomposition(op) is not None


def rule_for(op: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Rule | None:
    """Return a rule for `op` with exactly these sizes and static arguments, or `None` if its pieces cannot be
    lowered.
    """
    decomposition = _decomposition(op)
    if decomposition is None:
        return None
    leaves, tree = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    module = _trace(decomposition, leaves, tree, places)
    if module is None or interpreter.operators_without_rule(module):
        return None
    draws = interpreter.draws(module)

    def lower(*args: object, key: Any = None, **kwargs: object) -> jax.Array:
        arrays = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
        keys = [jax.random.fold_in(key, draw) for draw in range(draws)]
        return interpreter.interpret(module, arrays[: len(places)], keys)

    return add_rule(Rule((op, next(_serial)), lower, Promotion.NONE, draws > 0))


def _trace(
    decomposition: Callable[..., object], leaves: list[Any], tree: pytree.TreeSpec, places: list[int]
) -> GraphModule | None:
    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        filled = [torch.device("meta") if isinstance(leaf, torch.device) else leaf for leaf in filled]
        args, kwargs = pytree.tree_unflatten(filled, tree)
        return decomposition(*args, **kwargs)

    with private.without_modes(), torch.no_grad():
        examples = [
            torch.empty_strided(leaves[i].shape, leaves[i].stride(), dtype=leaves[i].dtype, device="meta")
            for i in places
        ]
        try:
            return make_fx(
                functionalize(call, remove="mutations_and_views"), decomposition_table=table(), tracing_mode="fake"
            )(*examples)
        except (NotImplementedError, DynamicOutputShapeException):
            return None
