"""Compile a lowered program so that its bfloat16 matrix products run on the platform.

XLA:CPU keeps a product in bfloat16 if it plans to use its own kernel for that dtype, and widens the operands of other
products. It decides before it merges transpositions into products, and has no kernel for some of the merged products:
such an executable fails whenever it runs.
"""

import re
from typing import Any

from .. import metrics
from ..atomic import uncollected
from ..compat.names import jax as private
from ..compiler_options import WITHOUT_BFLOAT16_KERNELS
from ..runtime.device_assignment import Target
from .exact_comparisons import compare_exactly
from .jax_function import options_for
from .rewrite_barriers import keep_arithmetic

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([^\s(]+) \(.*-> .*\{$", re.MULTILINE)
_OF_BFLOAT16 = re.compile(r"%?([^\s%]+) = bf16\[")
_PRODUCT = re.compile(r" dot\(%?([^\s,()]+), ")
_IN_A_KERNEL = re.compile(r" kind=kCustom, calls=%?([^\s,]+)")


@uncollected
def compiled(lowered: Any, target: Target) -> Any:
    """Return the executable that XLA makes for `target` of `lowered`, which was lowered for it."""
    if target.is_host:
        module = lowered.compiler_ir("stablehlo")
        keep_arithmetic(module)
        compare_exactly(module)
    is_narrow = target.is_host and private.multiplies_bfloat16(lowered)
    executable = lowered.compile()
    if is_narrow and not_run(executable.as_text()):
        metrics.count("BFloat16ProductsWidened")
        executable = lowered.compile(compiler_options={**(options_for(target) or {}), **WITHOUT_BFLOAT16_KERNELS})
    return executable


def not_run(optimized: str) -> list[str]:
    """Return the products of bfloat16 in what XLA:CPU made of a program that it has no kernel for."""
    narrow = set(_OF_BFLOAT16.findall(optimized))
    kernels = set(_IN_A_KERNEL.findall(optimized))
    starts = [*_COMPUTATION.finditer(optimized)]
    ends = [*(each.start() for each in starts[1:]), len(optimized)]
    return [
        product[0].strip()
        for start, end in zip(starts, ends, strict=True)
        if start[1] not in kernels
        for product in _PRODUCT.finditer(optimized, start.end(), end)
        if product[1] in narrow
    ]
