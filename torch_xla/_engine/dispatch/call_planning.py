"""Plan a call: results from the meta kernel, the rule from the registry, dtypes from promotion."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch

from .. import dtypes
from ..atomic import uncollected
from ..caching.interning import note_new, table_of_plans
from ..compat.names.jax_source_lines import located
from ..compat.names.torch import pytree, schema_of
from ..ir.call_plan import Number, Operand, Plan
from ..ir.tape import Value
from ..ir.value_spec import Spec, contiguous_stride, refuse_impossible, spec_of
from ..lowering.fx_graphs import decompositions
from ..lowering.machinery import promotion
from ..lowering.machinery.lower_call import apply_rule, flatten
from ..lowering.machinery.registry import NEVER_ARRIVE, Promotion, Rule, rule_of, that_arrive
from ..runtime import platform
from ..tensor.views import View
from . import abstract_eval
from .checks import cpu_errors
from .checks import scalar_ranges as number_limits
from .checks.cpu_dtypes import refuse_dtypes
from .op_schema import Form, Operator, read_by
from .skip_abstract_eval import meta_kernel_suffices

# The size or the strides of their results depend on their numbers.
_SIZED_BY_NUMBERS = ("aten::arange", "aten::range", "aten::_scaled_dot_product_fused_attention_overrideable_backward")

# Numbers that take the dtype of the tensors they multiply.
_FACTORS = ("alpha", "beta", "value")

RESIZE_WARNING = (
    "An output with one or more elements was resized since it had shape {}, which does not match the required "
    "output shape {}. This behavior is deprecated, and in a future PyTorch release outputs will not be resized "
    "unless they have zero elements. You can explicitly reuse an out tensor t by resizing it, inplace, to zero "
    "elements with t.resize_(0)."
)


# A call taken apart: what identifies its plan; the values it reads, each a value or (value, view); its numbers.
Call = tuple[list[Hashable], list[Value | tuple[Value, View]], list[float]]


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """The plan of a kernel for all calls with one signature. Without a plan, the call runs on the CPU."""

    plan: Plan | None
    writes: bool = False
    nested: bool = False
    is_list: bool = False
    constants: tuple[object, ...] = ()
    # Results that are an unchanged operand: the tensor that is written to keeps its value.
    unchanged: frozenset[int] = frozenset()
    # The entries by number, where a rule depends on the numbers themselves (it was traced with them).
    variants: "dict[tuple[object, ...], Entry] | None" = None
    watched: bool = False  # an operand may show part of the memory that is written
    whole: bool = False  # each tensor written to shows the whole of its storage
    limits: number_limits.Limits | None = None  # what the numbers are held against
    is_settled: bool = True  # by the kinds of numbers alone
    makes_new: bool = False  # its results are new tensors, which depend on nothing but the operands and numbers
    is_simple: bool = False  # it makes one new tensor

    def __post_init__(self) -> None:
        plan = self.plan
        is_settled = self.variants is None and self.limits is None
        makes_new = is_settled and plan is not None and not (self.writes or plan.draws)
        # Of a plan with several outputs a caller may return the first alone; such calls take the longer way.
        is_one = plan is not None and len(plan.outputs) == 1
        object.__setattr__(self, "is_settled", is_settled)
        object.__setattr__(self, "makes_new", makes_new and (self.nested or is_one))
        object.__setattr__(self, "is_simple", makes_new and not self.nested and is_one)


def keep(entries: "dict[tuple[object, ...], Entry]") -> None:
    """Limit the size of a table of entries, by signature."""
    table_of_plans(entries, _plan_of)


def _plan_of(entry: Entry) -> Plan | dict[tuple[object, ...], Entry] | None:
    return entry.plan if entry.variants is None else entry.variants


def plan_call(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Entry:
    """Return the entry of a call seen for the first time. Raises what the CPU raises if the arguments are wrong."""
    if operator.form is Form.INPLACE:
        cpu_errors.refuse_overlapping_target(operator, args, kwargs)
    platform.prepare_host()  # JAX starts a thread when it traces for the first time
    try:
        entry = _plan_call(operator, args, kwargs, call)
    except NotImplementedError:
        raise
    except Exception as error:  # what JAX raises for wrong arguments is its own; the CPU has PyTorch's words
        refusal = cpu_errors.refusal_of_the_cpu(operator, args, kwargs)
        if refusal is None and isinstance(error, TypeError) and call[1]:
            # In `a + b` PyTorch turns a TypeError into NotImplemented, and Python raises its own message.
            raise RuntimeError(str(error)) from error
        if refusal is None:
            raise
        raise refusal from error
    for spec in entry.plan.outputs if entry.plan is not None else ():
        refuse_impossible(spec)
        cpu_errors.warn_of_complex32(spec)
    note_new()
    return entry


@uncollected  # PyTorch's modes are on, and would catch what a finalizer calls
def _plan_call(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Entry:
    if call[2] and schema_of(operator.overload).name in _SIZED_BY_NUMBERS:
        return Entry(None, variants={})
    rule = rule_of(operator.functional) if operator.functional is not None else None
    inferred: abstract_eval.Inferred | None = None
    try:
        inferred = abstract_eval.infer(operator, args, kwargs)
    # Some divide by the number of elements, which may be 0; some look for the complex dtype of a float8.
    except (NotImplementedError, ZeroDivisionError, KeyError):
        if rule is None:
            return Entry(None)
    if rule is None and operator.functional is not None:
        if call[2]:
            return Entry(None, variants={})
        rule = decompositions.rule_for(operator.functional, args, kwargs)
    if rule is None:
        return Entry(None)
    plan = _plan(rule, operator, args, kwargs, call)
    passed_on: list[int] = []
    shapes: Any = None
    writes = operator.form is Form.INPLACE
    try:
        if inferred is None or not meta_kernel_suffices(rule, plan, inferred, writes):
            shapes, passed_on = evaluated_on_shapes(
                plan, _written_operands(operator, args, kwargs) if writes else [], call[2]
            )
            inferred = _from_shapes(shapes) if inferred is None else _without_unwanted(inferred, shapes)
        plan = replace(plan, outputs=inferred.outputs, structure=inferred.structure)
        _check_results(plan, shapes)
    except NotImplementedError:
        return Entry(None)
    is_one = shapes is not None and not isinstance(shapes, (list, tuple))
    gives_nothing = not any(spec.numel for spec in plan.outputs)
    refuse_dtypes(rule, operator, args, kwargs, dtypes.to_torch(shapes.dtype) if is_one else None, gives_nothing)
    is_list = inferred.nested and len(inferred.structure) == 1 and inferred.structure[0] >= 0
    return Entry(
        plan,
        writes,
        inferred.nested,
        is_list,
        inferred.constants,
        watched=writes and _may_overlap(operator, call),
        whole=writes and not any(each.__class__ is tuple for each in read_by(operator, args, kwargs, call[1])),
        # Calls with other numbers find this entry too: `x.pow_(1.0)` changes nothing, `x.pow_(2.0)` does.
        unchanged=frozenset(() if call[2] else passed_on),
        limits=number_limits.limits_of(
            operator, args, kwargs, (spec.dtype for spec in (*plan.operands, *plan.outputs))
        ),
    )


@uncollected
def evaluated_on_shapes(plan: Plan, targets: list[int], numbers: list[Any]) -> tuple[object, list[int]]:
    """Return the shapes of the rule's results, and which of the first ones are their `targets`, unchanged."""
    passed_on: list[int] = []

    def abstract(*arrays: jax.Array) -> object:
        result = apply_rule(plan, arrays, numbers, _key(plan))
        leaves = jax.tree.leaves(result)[: len(targets)]
        passed_on.extend(i for i, leaf in enumerate(leaves) if leaf is arrays[targets[i]])
        return result

    with jax.enable_x64(True), located(None, ()):
        return jax.eval_shape(abstract, *_shapes(plan)), passed_on


def _written_operands(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[int]:
    """Return the operands that the results of an in-place call replace, in the order of the results."""
    operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    written = cpu_errors.written_tensors(operator, args, kwargs)
    return [next(i for i, operand in enumerate(operands) if operand is tensor) for tensor in written]


def _may_overlap(operator: Operator, call: Call) -> bool:
    """Return whether another operand may be a view of the storage that is written to."""
    views = any(operand.__class__ is tuple for operand in call[1]) or cpu_errors.places_elements(operator)
    return views and len(call[1]) > 1  # the viewed memory is not known: the plan serves other views too


def _plan(rule: Rule, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Plan:
    template = _Template(keeps_numbers=not call[2])
    filled_args = tuple(template.replace(a, i in operator.scalars) for i, a in enumerate(args))
    filled_args = that_arrive(operator.overload, filled_args)
    filled_kwargs = {}
    for keyword, argument in kwargs.items():
        replaced = template.replace(argument, keyword in operator.scalars)
        if keyword not in NEVER_ARRIVE:
            filled_kwargs[keyword] = replaced
    if operator.reordered:
        filled_args = tuple(filled_args[position] for position in operator.reordered)
    for position, name, default in operator.defaults:
        if position >= len(args):
            filled_kwargs.setdefault(name, default)
    return Plan(
        rule.op,
        (filled_args, filled_kwargs),
        _operand_specs(call),
        tuple(template.numbers),
        (),
        compute_dtype=_compute_dtype(rule, operator, args, kwargs),
        draws=int(rule.draws(filled_args, filled_kwargs)),
    )


def settle(
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
) -> tuple[Entry, Call]:
    """Return the entry and the call once the numbers themselves were looked at."""
    if entry.variants is not None:
        entry, call = _variant(entry.variants, operator, args, kwargs, call), (call[0], call[1], [])
    if entry.limits is not None:
        number_limits.check(entry.limits, operator, args, kwargs)
    return entry, call


def _variant(
    variants: dict[tuple[object, ...], Entry],
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
) -> Entry:
    """Return the entry for these very numbers, which become part of the plan."""
    numbers = tuple(call[2])
    found = variants.get(numbers)
    if found is None:
        found = variants[numbers] = plan_call(operator, args, kwargs, (call[0], call[1], []))
    return found


class _Template:
    """Replaces tensors and numbers by placeholders, in the order in which kernels take a call apart."""

    def __init__(self, keeps_numbers: bool) -> None:
        self.operands = 0
        self.keeps_numbers = keeps_numbers
        self.numbers: list[type] = []

    def replace(self, argument: Any, takes_scalar: bool) -> Any:
        if isinstance(argument, torch.Tensor):
            self.operands += 1
            return Operand(self.operands - 1)
        kind = argument.__class__
        if kind in (int, float) and (self.keeps_numbers or is_subnormal(argument)):
            return argument
        if kind is float or (kind is int and takes_scalar and -(1 << 63) <= argument < 1 << 63):
            return self._placed(kind)
        if kind is list or kind is tuple:
            if not self.keeps_numbers and set(map(type, argument)) == {float}:
                return [self._placed(float) for _ in argument]
            return [self.replace(element, takes_scalar) for element in argument]
        return argument

    def _placed(self, kind: type) -> Number:
        self.numbers.append(kind)
        return Number(len(self.numbers) - 1)


SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal


def is_subnormal(number: float) -> bool:
    """Return whether float32 holds a number only as a subnormal one; such a number is part of the plan.

    XLA:CPU takes it for 0, so a rule must see it. In a list it is a number like others.
    """
    return 0 < abs(number) < SMALLEST_NORMAL


def _operand_specs(call: Call) -> tuple[Spec, ...]:
    specs = []
    for operand in call[1]:
        if isinstance(operand, tuple):
            specs.append(operand[1].shown)
        else:
            specs.append(operand.spec)
    return tuple(specs)


def _compute_dtype(rule: Rule, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    if rule.promotion is Promotion.NONE:
        return None
    tensors: list[tuple[torch.dtype, int]] = []
    numbers: list[Any] = []
    for where, argument in (*enumerate(args), *kwargs.items()):
        for leaf in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(leaf, torch.Tensor):
                tensors.append((leaf.dtype, leaf.dim()))
            elif isinstance(leaf, (bool, int, float, complex)) and where in operator.scalars and where not in _FACTORS:
                numbers.append(leaf)
    dtype = promotion.common_dtype(tensors, numbers)
    return promotion.float_dtype(dtype) if rule.promotion is Promotion.FLOAT else dtype


def _shapes(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(s.size, dtypes.to_jax(dtypes.on_device(s.dtype))) for s in plan.operands]


def _key(plan: Plan) -> jax.Array | None:
    return jax.random.key(0, impl="rbg") if plan.draws else None


def _check_results(
    plan: Plan,
    shapes: object,
) -> None:
    for spec in plan.outputs:
        dtypes.to_jax(spec.dtype)  # raises if no XLA device has it
    # A rule that disagrees with PyTorch about a shape is our mistake: better here, at the user's line.
    for shape, spec in zip(flatten(shapes, plan), plan.outputs, strict=True) if shapes is not None else ():
        if shape.shape != spec.size:
            raise ValueError(f"the rule of {plan.op} returns shape {shape.shape}, PyTorch expects {spec.size}")


def _without_unwanted(
    inferred: abstract_eval.Inferred,
    shapes: jax.ShapeDtypeStruct | tuple[object, ...],
) -> abstract_eval.Inferred:
    # Some meta kernels describe results that the call masks out; the rule knows better and returns None for them.
    if not isinstance(shapes, (list, tuple)) or len(inferred.structure) != len(shapes) or len(shapes) == 1:
        return inferred
    outputs: list[Spec] = []
    structure: list[int] = []
    rest = iter(inferred.outputs)
    for count, part in zip(inferred.structure, shapes, strict=True):
        specs = [next(rest) for _ in range(1 if count == -1 else max(count, 0))]
        wanted = part is not None
        structure.append(count if wanted else -2)
        outputs.extend(specs if wanted else ())
    return replace(inferred, outputs=tuple(outputs), structure=tuple(structure))


def _from_shapes(result: Any) -> abstract_eval.Inferred:
    """Return sizes and dtypes as the rule gives them, for the few operators PyTorch has no meta kernel of."""
    nested = isinstance(result, (list, tuple))
    parts = result if nested else (result,)
    outputs: list[Spec] = []
    structure: list[int] = []
    for part in parts:
        if part is None:
            structure.append(-2)
            continue
        structure.append(len(part) if isinstance(part, (list, tuple)) else -1)
        for array in part if isinstance(part, (list, tuple)) else (part,):
            outputs.append(spec_of(array.shape, contiguous_stride(array.shape), dtypes.to_torch(array.dtype)))
    return abstract_eval.Inferred(tuple(outputs), tuple(structure), nested)


_TYPE_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float",
    torch.float64: "Double", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
}  # fmt: skip


def type_name(dtype: torch.dtype) -> str:
    """Return the name PyTorch's C++ messages use, such as "Float"."""
    return _TYPE_NAMES.get(dtype, str(dtype).removeprefix("torch.").capitalize())
