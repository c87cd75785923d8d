"""Compile a lowered program with XLA, after the edits that the compiler of its platform needs."""

from collections.abc import Callable
from typing import Any

import jax

from .. import metrics
from ..atomic import uncollected
from ..compat.names import jax as private
from ..compiler_options import WITHOUT_BFLOAT16_KERNELS
from ..runtime.device_assignment import Target
from . import bfloat16_dots, tpu_dtypes
from .exact_comparisons import compare_exactly
from .jax_function import options_for
from .rewrite_barriers import keep_arithmetic


@uncollected
def compiled(lowered: Any, target: Target) -> Any:
    """Return the executable that XLA makes for `target` of `lowered`, which was lowered for it."""
    if target.is_host:
        module = lowered.compiler_ir("stablehlo")
        keep_arithmetic(module)
        compare_exactly(module)
    elif target.platform == "tpu":
        tpu_dtypes.prepare(lowered.compiler_ir("stablehlo"))
    is_narrow = target.is_host and private.multiplies_bfloat16(lowered)
    executable = lowered.compile()
    if is_narrow and bfloat16_dots.not_run(executable.as_text()):
        metrics.count("BFloat16ProductsWidened")
        executable = lowered.compile(compiler_options={**(options_for(target) or {}), **WITHOUT_BFLOAT16_KERNELS})
    return executable


def compiled_function(function: Callable[..., Any], operands: tuple[Any, ...], target: Target) -> Any:
    """Return the executable of a JAX function for such operands, with the options and edits that steps have."""
    options: Any = options_for(target)
    return compiled(jax.jit(function, keep_unused=True, compiler_options=options).lower(*operands), target)
