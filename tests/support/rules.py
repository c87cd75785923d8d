"""Runs one lowering rule on CPU tensors, without a device: for tests of the lowering room."""

import warnings
from typing import Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_xla._engine import compiler_options, dtypes
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.compat.patches import mlir_contexts
from torch_xla._engine.lowering.machinery import promotion as promote
from torch_xla._engine.lowering.machinery.registry import Promotion, rule_of

DROPPED = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Copy a CPU tensor; `jnp.asarray` would compile a program for each size."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in (torch.bfloat16,) or "float8" in str(tensor.dtype):
        width = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        return jax.device_put(tensor.view(width).numpy().view(dtypes.to_jax(tensor.dtype)), may_alias=False)
    return jax.device_put(tensor.numpy(), may_alias=False)


def to_torch(array: jax.Array) -> torch.Tensor:
    host = np.asarray(array)
    dtype = dtypes.to_torch(host.dtype)
    if dtype is torch.bfloat16:
        return torch.from_numpy(host.view(np.int16).copy()).view(dtype)
    if "float8" in str(dtype):
        return torch.from_numpy(host.view(np.uint8).copy()).view(dtype)
    return torch.from_numpy(np.array(host))


def apply_rule(
    op: Any, *args: Any, seed: int = 0, jit: bool = True, floats_are_arguments: bool = False, **kwargs: Any
) -> Any:
    """`op(*args, **kwargs)` by our rule: CPU tensors in, CPU tensors out, result dtypes as the rule gives them.

    Floats are known to the rule, or arguments of the program.
    """
    rule = rule_of(op)
    assert rule is not None, f"{op} has no rule"
    kwargs = {k: v for k, v in kwargs.items() if k not in DROPPED}
    leaves, tree = pytree.tree_flatten((list(args), kwargs))
    dtype = None
    if rule.promotion is not Promotion.NONE:
        tensors = [(x.dtype, x.dim()) for x in leaves if isinstance(x, torch.Tensor)]
        numbers = [x for x in leaves if isinstance(x, (bool, int, float, complex)) and not isinstance(x, torch.Tensor)]
        dtype = promote.common_dtype(tensors, numbers)
        if rule.promotion is Promotion.FLOAT:
            dtype = promote.float_dtype(dtype)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), mlir_contexts.kept():
        arrays = [to_jax(x) for x in leaves if isinstance(x, torch.Tensor)]
        if dtype is not None:
            arrays = [x.astype(dtypes.to_jax(dtype)) for x in arrays]

        given = [np.float64(x) for x in leaves if floats_are_arguments and type(x) is float]

        def run(arrays: list[jax.Array], given: list[jax.Array], key: jax.Array) -> Any:
            it, numbers = iter(arrays), iter(given)
            filled = [next(it) if isinstance(x, torch.Tensor) else x for x in leaves]
            if floats_are_arguments:
                float64 = np.dtype(np.float64)
                filled = [private.weakly_typed(next(numbers), float64) if type(x) is float else x for x in filled]
            a, k = pytree.tree_unflatten(filled, tree)
            if rule.random:
                k["key"] = key
            return rule.lower(*a, **k)

        options = dict(compiler_options.chosen())
        result = (jax.jit(run, compiler_options=options) if jit else run)(
            arrays, given, jax.random.key(seed, impl="rbg")
        )
    return jax.tree.map(to_torch, result)


def of_the_cpu(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return PyTorch's result on the CPU, without its warnings, which differ between releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op(*args, **kwargs)


def check_rule(op: Any, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Asserts that our rule gives what PyTorch gives on the CPU: shapes, values, and dtype up to the final cast."""
    expected = of_the_cpu(op, args, kwargs)
    got = apply_rule(op, *args, **kwargs)
    expected, got = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    assert len(expected) == len(got), f"{op}: {len(got)} results, expected {len(expected)}"
    for ours, theirs in zip(got, expected, strict=True):
        if ours is None:
            continue  # a result that the call masks out; PyTorch may return uninitialised memory
        torch.testing.assert_close(ours.to(theirs.dtype), theirs.contiguous(), rtol=rtol, atol=atol, equal_nan=True)
