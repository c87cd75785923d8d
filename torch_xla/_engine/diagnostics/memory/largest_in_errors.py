"""Explain memory use in errors: living tensors, and the values that a program would compute."""

from collections.abc import Sequence

from ...compile.program import Program
from ...metrics.human_units import size
from ...metrics.observers import observers
from ...metrics.user_lines import text
from ...planning.planner import intermediates_of
from . import largest_values

_MOST = 5


def begin() -> None:
    """Add the explanation to errors."""
    observers.register("explain_memory", explained)


def explained(program: Program | None, numbers: Sequence[float | int]) -> str:
    """List the largest living tensors by line, and the largest intermediate values of a compiled program."""
    rows = []
    living = [holding for holding in largest_values.holdings(_MOST) if holding.bytes]
    if living:
        rows.append("The largest tensors that live:")
    for holding in living:
        times = f"{holding.count} × " if holding.count > 1 else ""
        named = " " + ", ".join(holding.names[:3]) if holding.names else ""
        where = f" made at {text(holding.line)}" if holding.line is not None else ""
        rows.append(f"  {size(holding.bytes):>9}  {times}{holding.shape}{named}{where}")
    large = intermediates_of(program, numbers)[:_MOST] if program is not None else []
    if large:
        rows.append("The largest values that the program computes on the way:")
    for value in large:
        times = f"{value.count} × " if value.count > 1 else ""
        where = f" at {text(value.line)}" if value.line is not None else ""
        rows.append(f"  {size(value.bytes):>9}  {times}{value.shape} {value.name}{where}")
    return "".join(f"{row}\n" for row in rows)
