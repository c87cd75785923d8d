"""A scan whose body may write to tensors that it closes over, as those of `scan_layers` and `gradient_accumulation` do.

`torch_xla.experimental.scan.scan` refuses such a body.
"""

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compiled.loops import scan_loop


def writing_scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition: Callable[..., Any] = scan_loop.default_partition,
) -> tuple[Any, Any]:
    """Apply `carry, y = fn(carry, x)` to the slices of `xs`, with the engine's loop."""
    return scan_loop.run(scan_loop.trace(fn, init, xs), init, xs, partition)
