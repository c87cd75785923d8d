"""Look in a graph of `torch.compile` for a call that PyTorch's CPU refuses, as it is refused outside of graphs.

A graph is traced with PyTorch's meta kernels, which let some dtypes, sizes and numbers pass.
"""

from collections.abc import Sequence

import torch
from torch.fx import Node

from ...compat.names.torch import OpOverload, pytree, without_modes
from ...dispatch.checks.cpu_dtypes import refuse_dtypes
from ...dispatch.checks.host_values import refuse_numbers
from ...dispatch.op_schema import operator_of
from ...dispatch.stricter_meta_kernels import refuse_sizes
from ...lowering.machinery.registry import Promotion, rule_of


class _Unknown(Exception):
    """An argument that is known at run time only."""


def refusal_in(nodes: Sequence[Node]) -> Exception | None:
    """Return the CPU's error for the first call of a graph that it refuses; `None` if it accepts all."""
    with without_modes():
        for node in nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                refusal = _refusal(node, node.target)
                if refusal is not None:
                    return refusal
    return None


def _refusal(node: Node, target: OpOverload) -> Exception | None:
    rule = rule_of(target)
    if rule is None or not target.name().startswith("aten::"):
        return None
    is_pointwise = rule.promotion is not Promotion.NONE
    try:
        args, kwargs = pytree.tree_map(lambda leaf: _known(leaf, is_pointwise), (tuple(node.args), dict(node.kwargs)))
    except _Unknown:
        return None
    operator = operator_of(target.name())
    try:
        refuse_sizes(operator, args, kwargs)
        refuse_dtypes(rule, operator, args, kwargs)
        refuse_numbers(operator, args, kwargs, node.meta.get("val"))
    except Exception as refusal:  # whatever the CPU raises is the answer
        return refusal
    return None


def _known(leaf: object, is_pointwise: bool) -> object:
    """Return an argument for the CPU. For a pointwise operator its size does not matter."""
    value = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
    if isinstance(value, torch.Tensor):
        if any(not isinstance(size, int) for size in value.shape):
            if not is_pointwise:
                raise _Unknown
            return torch.zeros([1] * value.dim(), dtype=value.dtype)
        return torch.zeros((), dtype=value.dtype).expand(value.shape)
    if isinstance(leaf, Node) or isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise _Unknown
    return torch.device("cpu") if isinstance(value, torch.device) else value
