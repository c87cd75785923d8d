"""Operators whose meta kernel makes abstract evaluation of our rule unnecessary.

Trying a rule on shapes takes longer than the rest of planning. A trial gives the sizes, and the rule's refusals. So it
is skipped only where the meta kernel is known to refuse everything that the CPU refuses: for the operators listed here
and foreach operators, with floating-point operands of one dtype. Not listed, although common: `_softmax`, whose meta
kernel accepts any dimension, and `addmm` and `baddbmm`, whose meta kernels accept addends that enlarge the product.

Tests check the list (`tests/engine/dispatch/test_skip_abstract_eval.py`): no rule of a listed operator that is a Python
function raises by itself. For operators in PyTorch's database, including foreach forms, the float32 samples and wrong
calls are planned as with a trial, and are computed or refused as on the CPU. Other dtypes, and operators that only
autograd calls, are tested as far as the database's entries reach them.
"""

from typing import Any

from ..compat.names.torch import OpOverload, schema_of
from ..ir.call_plan import Plan
from ..lowering.machinery.registry import Rule
from . import abstract_eval

# Each element of the result comes of the elements in its place.
_ELEMENTWISE = frozenset(
    ("abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "atan2", "ceil", "clamp", "clamp_max", "clamp_min",
     "clone", "cos", "cosh", "div", "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "hardtanh",
     "le", "leaky_relu", "lerp", "log", "log10", "log1p", "log2", "lt", "maximum", "minimum", "mul", "ne", "neg",
     "pow", "reciprocal", "relu", "round", "rsqrt", "rsub", "sigmoid", "sigmoid_backward", "sign", "silu",
     "silu_backward", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "tanh_backward", "threshold_backward",
     "trunc")
)  # fmt: skip

# Whole steps of optimizers, which are called with lists that fit.
_STEPS = "xla::multi_tensor_"

# Meta kernels look at dimensions and sizes, but let any dimension pass of an operand that has none.
_OF_DIMENSIONS = frozenset(("bmm", "mean", "mm", "sum"))


def meta_kernel_suffices(rule: Rule, plan: Plan, inferred: abstract_eval.Inferred, writes: bool) -> bool:
    """Return whether the meta kernel alone can plan a call of `rule`; `writes` means that it writes to an operand."""
    if not isinstance(rule.op, OpOverload) or not rule.op.name().startswith(("aten::", _STEPS)):
        return False
    name = schema_of(rule.op).name.removeprefix("aten::")
    is_known = name in _ELEMENTWISE or name in _OF_DIMENSIONS and all(spec.size for spec in plan.operands)
    if not (is_known and len(inferred.structure) == 1) and not name.startswith(("_foreach_", _STEPS)):
        return False
    dtypes = {spec.dtype for spec in plan.operands}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point or _has_words(plan.arguments):
        return False
    # A written tensor keeps its dtype: a result of another dtype may be cast or refused.
    return not writes or plan.compute_dtype is None or dtypes == {plan.compute_dtype}


def _has_words(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Return whether an argument is a string, such as a rounding mode: meta kernels accept any."""
    return any(argument.__class__ is str for argument in (*arguments[0], *arguments[1].values()))
