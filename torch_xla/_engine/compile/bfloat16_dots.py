"""Find bfloat16 matrix products that XLA:CPU compiles and cannot run.

It keeps a product in bfloat16 if it plans to use its own kernel for that dtype, and widens the operands of other
products. It decides before it merges transpositions into products, and has no kernel for some of the merged products:
such an executable fails whenever it runs.
"""

import re

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([^\s(]+) \(.*-> .*\{$", re.MULTILINE)
_OF_BFLOAT16 = re.compile(r"%?([^\s%]+) = bf16\[")
_PRODUCT = re.compile(r" dot\(%?([^\s,()]+), ")
_IN_A_KERNEL = re.compile(r" kind=kCustom, calls=%?([^\s,]+)")


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
