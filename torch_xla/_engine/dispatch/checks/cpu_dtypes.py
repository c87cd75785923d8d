"""Refuse the dtypes that PyTorch's CPU refuses: meta kernels accept some of them, and XLA computes with all.

When a call is planned, the CPU runs it with zeros: once for each combination of operator, dtypes and kinds of numbers.
A combination without a CPU kernel is accepted only where PyTorch's accelerators have one. `docs/operator_database.md`
lists the other differences.
"""

from typing import Any

import torch
from torch import Tensor

from ...caching.bounded import put_last
from ...compat.names.torch import pytree, schema_of
from ...lowering.machinery.registry import Promotion, Rule
from ..op_schema import Form, Operator, operator_of
from . import cpu_errors

# Calls whose dtypes the CPU takes: its answer is the same for every size. A list may have any number of tensors.
_taken: dict[tuple[Any, ...], None] = {}
_MOST_TAKEN = 4096

# The largest number that the CPU is asked to make a tensor of.
_FEW = 4

_WIDE_WHOLE = (torch.uint16, torch.uint32, torch.uint64)

# By the names of arguments that say where elements are: dtypes that every operator takes.
_PLACES = {
    "index": (torch.int64,),
    "mask": (torch.bool,),
    "target": (torch.int64, torch.float64, torch.float32, torch.bfloat16, torch.float16),  # or what they should be
}
_NAMED_PLACES = frozenset((*_PLACES, "indices", "offsets"))


def refuse_dtypes(
    rule: Rule,
    operator: Operator,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    result: torch.dtype | None = None,
    gives_nothing: bool = False,
) -> None:
    """Raise what the CPU raises for the dtypes of a call.

    `result` is the dtype that a trial of the rule gave, if there was one and it has one result. A call that
    `gives_nothing` has results without elements: kernels may not have looked at its dtypes.
    """
    if _is_doubtful(rule, operator, args, kwargs, result):
        cpu_errors.refuse_if_the_cpu_does(operator, args, kwargs)
    operands = _tensors(args, kwargs)
    kinds = _kinds(operator, args, kwargs)
    # For nothing kernels do not look at dtypes, and some not for a single number, such as `mode`.
    counts = (operand.dim() and 1 + min(operand.numel(), 2) for operand in operands)
    asked = operator.name, tuple(zip((operand.dtype for operand in operands), counts, strict=True)), kinds
    is_pointwise = rule.promotion is not Promotion.NONE
    is_usual = not is_pointwise and {bool, complex}.isdisjoint(kinds) and _is_of_one_float(operands)
    is_usual = is_usual and _has_usual_places(operator, args, kwargs)
    is_of_few, is_usual = is_usual, is_usual and not any(map(_is_rare, kinds))
    if not operands:
        _refuse_made(operator, args, kwargs)
        return
    if asked in _taken or _is_of_autograd(operator, operands):
        return
    if is_usual and (rule.random or operands[0].dtype.itemsize >= 4):
        return  # all operators take float32 and float64, and all that draw take halves
    of_dtypes_alone = not is_pointwise and _has_places_beside(operator, args, kwargs)
    if of_dtypes_alone and operator.index_like:  # its kernel has asked about the values
        _refuse_elements(operator, args, kwargs)
        return
    # A few elements are enough to find the kernel. Nothing else is asked about operands of one narrow float, except
    # whether a result may have the dtype that is asked for.
    refusal = cpu_errors.refusal_of_the_cpu(operator, args, kwargs, small=is_pointwise or is_of_few)
    lacks_kernel = refusal is not None and cpu_errors.is_of_a_missing_kernel(refusal)
    # `isin` has other kernels for more elements.
    if is_pointwise and refusal is not None and not (lacks_kernel and torch.Tag.pointwise in operator.overload.tags):
        refusal = cpu_errors.refusal_of_the_cpu(operator, args, kwargs)
    of_kernels_alone = is_of_few and (is_usual or not _comes_of_rare_dtypes(operator, args, kwargs))
    if refusal is not None and is_refused(operator, args, kwargs, refusal, of_dtypes_alone, of_kernels_alone):
        raise refusal
    # Another one comes of these sizes.
    if not gives_nothing and (refusal is None or lacks_kernel or cpu_errors.is_of_zeros(refusal)):
        put_last(_taken, asked, None, _MOST_TAKEN)


def _is_rare(kind: object) -> bool:
    """Return whether it is a dtype that few operators have a kernel for if a result shall have it."""
    if not isinstance(kind, torch.dtype):
        return False
    return kind.is_complex or kind.itemsize == 1 and kind.is_floating_point or kind in _WIDE_WHOLE


def _comes_of_rare_dtypes(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the CPU accepts the same call if it asks for results of float32."""
    usual = pytree.tree_map(lambda leaf: torch.float32 if _is_rare(leaf) else leaf, (args, kwargs))
    return cpu_errors.refusal_of_the_cpu(operator, *usual, small=True) is None


def _refuse_elements(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU raises if it has no kernel that indexes elements of this dtype.

    It is asked with one place or, as it fills masks by another kernel with one number, with a mask.
    """
    named = _named(operator, args, kwargs)
    values = named.get("values")
    masks = [index.dtype in (torch.bool, torch.uint8) for index in named["indices"] if isinstance(index, Tensor)]
    is_fill = values is not None and values.numel() == 1 and all(masks) and not named.get("accumulate")
    key = operator.name, (named["self"].dtype,), (is_fill,)
    if key in _taken:
        return
    index = torch.zeros(2, dtype=torch.bool) if is_fill else torch.zeros(1, dtype=torch.int64)
    rest = () if values is None else (torch.zeros(1, dtype=values.dtype), *args[3:])
    asked = torch.zeros(2, dtype=named["self"].dtype), [index], *rest
    refusal = cpu_errors.refusal_of_the_cpu(operator, asked, {k: v for k, v in kwargs.items() if k != "values"})
    if refusal is not None and is_refused(operator, args, kwargs, refusal, of_dtypes_alone=True, of_kernels_alone=True):
        raise refusal
    put_last(_taken, key, None, _MOST_TAKEN)


def refuse_without_kernel(name: str, *args: Any) -> None:
    """Raise what the CPU raises if it has no kernel for the dtypes of a call that a hand-written kernel composes."""
    asked = name, tuple(operand.dtype for operand in _tensors(args, {})), ()
    if asked in _taken:
        return
    operator = operator_of(name)
    refusal = cpu_errors.refusal_of_the_cpu(operator, args, {}, small=True)
    if refusal is not None and is_refused(operator, args, {}, refusal, of_dtypes_alone=True, of_kernels_alone=True):
        raise refusal
    # Of nothing, kernels do not look at dtypes, nor where other arguments are wrong.
    if args[0].numel() and (refusal is None or cpu_errors.is_of_a_missing_kernel(refusal)):
        put_last(_taken, asked, None, _MOST_TAKEN)


def _refuse_made(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU raises for the `dtype=` of a tensor that is made of numbers, such as by `arange`."""
    dtype = kwargs.get("dtype")
    few_args, few_kwargs = pytree.tree_map(_at_most_few, (args, kwargs))
    # Of nothing, kernels do not look at dtypes.
    counts = tuple(leaf if isinstance(leaf, int) else type(leaf) for leaf in pytree.tree_leaves(few_args))
    asked = operator.name, counts, (dtype,)
    if dtype is None or asked in _taken:
        return
    refusal = cpu_errors.refusal_of_the_cpu(operator, few_args, few_kwargs)
    if refusal is None:
        put_last(_taken, asked, None, _MOST_TAKEN)
    elif cpu_errors.refusal_of_the_cpu(operator, few_args, {**few_kwargs, "dtype": torch.float32}) is None:
        raise refusal


def _at_most_few(leaf: Any) -> Any:
    """Return a number near enough to 0 that a tensor of this size, or with this last element, is small."""
    is_number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
    return type(leaf)(min(max(leaf, -_FEW), _FEW)) if is_number and abs(leaf) > _FEW else leaf


def refuse_outs(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU raises for the dtypes of tensors given as `out=`, and not what it raises for zeros."""
    refusal = cpu_errors.refusal_of_the_cpu(operator, args, kwargs)
    if refusal is not None and is_refused(operator, args, kwargs, refusal, of_dtypes_alone=True):
        raise refusal


def is_refused(
    operator: Operator,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    refusal: Exception,
    of_dtypes_alone: bool,
    of_kernels_alone: bool = False,
) -> bool:
    """Return whether the CPU's error counts: not if zeros cause it, or other devices have the kernel that it lacks.

    `of_dtypes_alone` if only what dtypes cause counts: zeros may be indices out of bounds, or masks that show nothing.
    `of_kernels_alone` if nothing counts but that there is no kernel.
    """
    if cpu_errors.is_of_zeros(refusal):
        return False
    if cpu_errors.is_of_a_missing_kernel(refusal):
        return cpu_errors.is_refused_everywhere(operator, args, kwargs)
    if of_kernels_alone:
        return False
    return not of_dtypes_alone or _comes_of_dtypes(operator, args, kwargs)


def _comes_of_dtypes(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the CPU accepts the same call with operands of one dtype."""
    tensors = _tensors(args, kwargs)
    named = _named(operator, args, kwargs)
    places = {id(leaf) for name in named.keys() & _NAMED_PLACES for leaf in pytree.tree_leaves(named[name])}
    others = [tensor for tensor in tensors if id(tensor) not in places]
    # The target of a loss is a place, classes, or has the dtype of the rest; pivots stay integers.
    positional = {id(tensor) for tensor in _tensors(args, {})}
    for kept in (places, set(), positional) if others else ():
        for dtype in (others[0].dtype, torch.float32):  # for narrower ones there may be no kernel
            instead = {id(tensor): dtype for tensor in tensors if id(tensor) not in kept}
            alike = cpu_errors.refusal_of_the_cpu(operator, args, kwargs, instead=instead)
            if alike is None or cpu_errors.is_of_zeros(alike):
                return True
    return False


def _is_doubtful(
    rule: Rule, operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any], result: torch.dtype | None
) -> bool:
    """Return whether PyTorch may refuse this combination of dtypes, or a result that does not fit its place."""
    operands = _tensors(args, kwargs)
    if _is_of_lists(operator):
        truths = any(isinstance(leaf, bool) for leaf in pytree.tree_leaves((args, kwargs)))
        return truths or any(not (each.is_floating_point() or each.is_complex()) for each in operands)
    if rule.promotion is Promotion.NONE:
        name = _name(operator)
        if "backward" in name:
            return False  # autograd calls it, and what the forward kernel kept has the dtypes of this device
        products = name in cpu_errors.PRODUCTS
        unlike = {each.dtype for each in operands if products or each.is_floating_point()}
        return name in ("complex", "polar") or len(unlike) > 1
    return operator.form is Form.INPLACE and result is not None and not torch.can_cast(result, operands[0].dtype)


def _is_of_autograd(operator: Operator, operands: list[Tensor]) -> bool:
    """Return whether autograd calls it: what the forward kernel kept has the dtypes of this device."""
    return "backward" in _name(operator) and operands[0].is_floating_point() and operands[0].itemsize > 1


def _is_of_one_float(operands: list[Tensor]) -> bool:
    # Of float8 the CPU's kernels refuse more than what they lack: most promotions.
    return len({each.dtype for each in operands}) == 1 and operands[0].is_floating_point() and operands[0].itemsize > 1


def _has_places_beside(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator may accept unlike dtypes, because some of its operands may be indices or masks."""
    found = {each.dtype for each in _tensors(args, kwargs)}
    if len(found) == 1 or _is_of_lists(operator) or not _has_usual_places(operator, args, kwargs):
        return False
    return not any(dtype.is_complex for dtype in found) or not {torch.bool, torch.uint8, torch.int32}.isdisjoint(found)


def _has_usual_places(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an index has one of the dtypes that every operator accepts for it."""
    named = _named(operator, args, kwargs)
    places = [(named.get(name), usual) for name, usual in _PLACES.items()]
    return all(place.dtype in usual for place, usual in places if isinstance(place, Tensor))


def _named(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip([a.name for a in schema_of(operator.overload).arguments], args, strict=False)), **kwargs}


def _tensors(args: tuple[object, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _kinds(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
    """Return what else the CPU's choice of a kernel depends on: kinds of numbers, words, flags, dtypes asked for."""
    numbers = [args[w] if isinstance(w, int) else kwargs[w] for w in operator.scalars if _is_given(w, args, kwargs)]
    leaves = pytree.tree_leaves((args, kwargs))
    words = (leaf for leaf in leaves if isinstance(leaf, str | torch.dtype | bool | None))
    in_lists = (complex,) if any(isinstance(leaf, complex) for leaf in leaves) else ()
    return (*map(type, numbers), *words, *in_lists)


def _is_given(where: int | str, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
    return where < len(args) if isinstance(where, int) else where in kwargs


def _is_of_lists(operator: Operator) -> bool:
    return schema_of(operator.overload).name.startswith("aten::_foreach_")


def _name(operator: Operator) -> str:
    return schema_of(operator.overload).name.partition("::")[2].rstrip("_")
