"""Operators whose meta kernel makes abstract evaluation of our rule unnecessary.

Trying a rule on shapes takes longer than the rest of a plan. A trial tells sizes, and what the rule refuses; so it is
left out only where meta kernels are known to refuse all that the CPU refuses: for the operators listed here and those
on lists, of floating-point operands of one dtype. Not listed, though used as often: `_softmax`, whose meta kernel takes
any dimension, and `addmm` and `baddbmm`, whose meta kernels take addends that would enlarge the product.

What holds the list (`tests/engine/dispatch/test_skip_abstract_eval.py`): no rule of a listed operator, where it is a
function of Python, raises by itself; and for those, on lists too, that PyTorch's database has under their name, its
float32 samples and wrong calls plan what a trial plans, and give or refuse what the CPU does. Other dtypes, and what
autograd alone calls, are seen there as far as the database's entries come to them.
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

# Meta kernels look at dimensions and sizes, but let any dimension pass of an operand that has none.
_OF_DIMENSIONS = frozenset(("bmm", "mean", "mm", "sum"))


def is_foretold(rule: Rule, plan: Plan, inferred: abstract_eval.Inferred, writes: bool) -> bool:
    """Whether a call that `rule` lowers is planned by what its meta kernel told alone; `writes`: into an operand."""
    if not isinstance(rule.op, OpOverload) or not rule.op.name().startswith("aten::"):
        return False
    name = schema_of(rule.op).name.removeprefix("aten::")
    is_known = name in _ELEMENTWISE or name in _OF_DIMENSIONS and all(spec.size for spec in plan.operands)
    if not (is_known and len(inferred.structure) == 1) and not name.startswith("_foreach_"):
        return False
    dtypes = {spec.dtype for spec in plan.operands}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point or _has_words(plan.arguments):
        return False
    # What is written keeps its dtype: another one may be cast or refused.
    return not writes or plan.compute_dtype is None or dtypes == {plan.compute_dtype}


def _has_words(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether an argument is a word, such as a way of rounding: meta kernels take any."""
    return any(argument.__class__ is str for argument in (*arguments[0], *arguments[1].values()))
