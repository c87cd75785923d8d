"""Register a kernel for every aten operator that reaches a backend, once, at import."""

import atexit
from typing import Any

import torch

from ... import metrics
from ...atomic import uncollected
from ...compat.names import torch as private
from ...lowering.machinery.registry import all_rules, names_to_come
from .. import append_calls, aten_views, copy_ops, cpu_only_ops, memory_ops, optimizer_state_init
from ..checks import host_values, index_checks, unsupported_layouts
from ..ops import (
    alpha_dropout,
    assertions,
    attention,
    batch_norm,
    data_dependent_sizes,
    distributions,
    flop_formulas,
    forward_mode_ad,
    linear_algebra,
    mark_tensor,
    memory_assumptions,
    optimizer_steps,
    out_forms,
    packed_attention,
    synchronized_batch_norm,
    whole_composites,
)
from ..ops.mark_sharding import KERNELS_OF_THEIR_OWN, register_marking
from ..ops.quantiles import register_quantiles
from ..ops.recurrent import register_recurrent
from ..out_variants import refusing_dtypes
from ..recording_kernel import out_variant, recorder, recorder_of_two
from .autocast import register_autocast

# Views that do not say so: PyTorch's composition shares the memory, as callers like `torch.kron` rely on.
_SHARING = frozenset(("aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"))

# PyTorch's own `out=` forms compute in other kernels than the operator itself, or take an `out=` of the CPU. `ldexp_`
# calls `ldexp.out`.
_COMPUTED_APART = ("addr.out", "cummax.out", "cummin.out", "ldexp.out", "mode.values")

# Overloads with an `out=` that do not say so. Their schemas would, but building all of them slows the import.
_NAMED_AFTER_RESULTS = frozenset(
    (
        "L", "U", "X", "a", "dim_max", "dim_min", "dim_values", "eigenvalues", "grad_input", "indices", "inverse",
        "result", "sign", "values", "values_stable",
    )
)  # fmt: skip

# Registered libraries must stay alive: dropping one takes its kernels back.
_libraries: list[torch.library.Library] = []


def special_kernels() -> dict[str, Any]:
    """Return, by names such as "copy_", the kernels that do not simply record a call of their operator."""
    return {
        **memory_ops.KERNELS,
        **copy_ops.KERNELS,
        **cpu_only_ops.KERNELS,
        **optimizer_state_init.KERNELS,
        **append_calls.KERNELS,
        **alpha_dropout.KERNELS,
        **assertions.KERNELS,
        **attention.KERNELS,
        **batch_norm.KERNELS,
        **memory_assumptions.KERNELS,
        **linear_algebra.KERNELS,
        **out_forms.KERNELS,
        **whole_composites.KERNELS,
        **distributions.KERNELS,
        **index_checks.KERNELS,
        **host_values.KERNELS,
        **synchronized_batch_norm.KERNELS,
        **unsupported_layouts.KERNELS,
        **packed_attention.KERNELS,
        **data_dependent_sizes.KERNELS,
        **forward_mode_ad.KERNELS,
        **{name.removeprefix("aten::"): aten_views.view_kernel(name) for name in aten_views.NAMES},
        "as_strided_": aten_views.as_strided_,
        "_neg_view": aten_views.neg_view,
    }


def register_kernels() -> None:
    """Register the kernels of all aten operators for the `xla` device."""
    library = private.raw_library("aten")
    _libraries.append(library)
    special = special_kernels()
    known = dict.fromkeys(private.all_operator_names())
    for name, kernel in special.items():
        if f"aten::{name}" not in known:
            continue  # such as `cholesky`, which PyTorch 2.14 removed
        kernel = refusing_dtypes(f"aten::{name}", kernel) if _is_out(f"aten::{name}") else kernel
        private.register_kernel(library, name, uncollected(kernel) if _writes(name) else kernel)
    ruled = {op.name().removesuffix(".default") for op in all_rules() if isinstance(op, private.OpOverload)}
    for name in known:
        if not name.startswith("aten::"):
            continue
        short = name.removeprefix("aten::")
        if short not in special and _is_ours(name, ruled):
            private.register_kernel(library, short, _kernel_for(name))
    _register_elsewhere(ruled)
    for short in _COMPUTED_APART:
        private.register_kernel(library, short, out_variant(f"aten::{short}"))
    whole_composites.register_whole()
    flop_formulas.register_when_asked_for()
    _libraries.append(alpha_dropout.register_above_autograd())
    _libraries.extend(attention.register_attention())
    _libraries.append(distributions.describe_draws())
    _libraries.append(linear_algebra.register_batching())
    _libraries.extend(register_recurrent())
    _libraries.append(register_quantiles())
    _libraries.append(synchronized_batch_norm.register_above_autograd())
    register_marking()
    optimizer_steps.register_steps()
    _libraries.extend(unsupported_layouts.register_refusals())
    _libraries.extend(data_dependent_sizes.register_splits())
    register_autocast()
    atexit.register(_refuse_from_now_on, cpu_only_ops.register_extensions())
    _libraries.append(aten_views.register_views())  # last: what is registered for all operators would undo it
    metrics.count("RegisterXLAFunctions")


def _refuse_from_now_on(of_extensions: torch.library.Library) -> None:
    private.unregister(of_extensions)  # a dispatch key has one kernel for all operators
    private.register_last_fallback("PrivateUse1", _refuse_at_the_end)


def _refuse_at_the_end(operator: object, *_: object, **__: object) -> object:
    raise RuntimeError(
        f"{operator}: Python is ending, and PyTorch has taken back the kernels of the xla device. Do this earlier, "
        "for instance in a function that `atexit` calls, and not in a `__del__`."
    )


def _register_elsewhere(ruled: set[str]) -> None:
    """Register kernels of operators outside `aten` that have a rule, before PyTorch's composition."""
    outside: dict[str, list[str]] = {}
    for name in {*ruled, *names_to_come()}:
        space, _, short = name.partition("::")
        if space != "aten" and name not in KERNELS_OF_THEIR_OWN:
            outside.setdefault(space, []).append(short)
    for space, names in outside.items():
        library = private.raw_library(space)
        _libraries.append(library)
        for short in names:
            name = f"{space}::{short}"
            private.register_kernel(library, short, mark_tensor.KERNELS.get(name) or recorder(name))


def _is_ours(name: str, ruled: set[str]) -> bool:
    if name in _SHARING:
        return False
    if private.has_kernel(name, "CompositeImplicitAutograd"):
        return name in ruled and private.has_kernel(name, "CPU")  # where the CPU does not compose it either
    # PyTorch's own composition of an operator is better than the CPU, unless we have a rule for the whole.
    base, dot, overload = name.partition(".")
    return f"{base.removesuffix('_')}{dot}{overload}" in ruled or not private.has_kernel(
        name, "CompositeExplicitAutograd"
    )


def _kernel_for(name: str) -> Any:
    overload = name.partition(".")[2]
    if _is_out(name):
        return out_variant(name)
    if _writes(name):
        return uncollected(recorder(name))
    return recorder_of_two(name) if _takes_two(name, overload) else recorder(name)


def _is_out(name: str) -> bool:
    overload = name.partition(".")[2]
    is_out = "out" in overload.lower() or overload in _NAMED_AFTER_RESULTS
    return is_out and any(a.is_out for a in _schema(name).arguments)


def _writes(name: str) -> bool:
    """Return whether a kernel writes a value that it read, so that a finalizer's write comes before or after it."""
    return name.partition(".")[0].endswith("_") or "batch_norm" in name


def _takes_two(name: str, overload: str) -> bool:
    """Return whether a functional operator may be called with two tensors and nothing else."""
    if overload not in ("", "Tensor", "Tensor_Tensor"):
        return False
    arguments = _schema(name).arguments
    return all(str(a.type) == "Tensor" and a.alias_info is None for a in arguments[:2]) and (
        len(arguments) == 2 or (len(arguments) > 2 and all(a.has_default_value() for a in arguments[2:]))
    )


def _schema(name: str) -> Any:
    base, _, overload = name.partition(".")
    return private.schema_named(base, overload)
