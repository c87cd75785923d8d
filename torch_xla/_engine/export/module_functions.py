"""Functions of modules that come in: which one is called, and which would end the process in MLIR or XLA."""

from typing import Any

from jax.extend.mlir import ir

from ..compat.names import jax as private
from .module_constants import line_of


def name_main(module: Any) -> None:
    """Give a module's only public function the name `main`, unless a function has it."""
    functions = _functions(module)
    public = [op for op in functions.values() if "sym_visibility" not in op.attributes]
    if "main" not in functions and len(public) == 1:
        public[0].attributes["sym_name"] = ir.StringAttr.get("main")


def check(module: Any) -> None:
    """Raise `ValueError` for a module without a function `main`, and for functions that nothing can run.

    They are functions without a body and functions that call themselves: MLIR and XLA end the process there.
    """
    functions = _functions(module)
    if "main" not in functions:
        raise ValueError(
            "a module that is called needs a function `main`, or in a text one public function alone; this one has "
            f"{', '.join(map(repr, sorted(functions))) or 'none'}"
        )
    for name, op in functions.items():
        if not op.operation.regions[0].blocks:
            raise ValueError(f"the function {name!r}{line_of(op)} has no body: a module that is called has all bodies")
    calls = {name: _called(op) for name, op in functions.items()}
    for name, op in functions.items():
        if name in _reached(calls, calls[name]):
            raise ValueError(
                f"the function {name!r}{line_of(op)} calls itself, which no device runs: use `stablehlo.while`"
            )


def _functions(module: Any) -> dict[str, Any]:
    return {_text(op, "sym_name"): op for op in module.body.operations if op.operation.name == "func.func"}


def _text(op: Any, name: str) -> str:
    return str(ir.StringAttr(op.attributes[name]).value)


def _called(function: Any) -> list[str]:
    """Return the names of the functions that a function calls, also by way of a composite or a custom call."""
    found: list[str] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        for each in ("callee", "decomposition"):
            if each in op.attributes:
                found.append(ir.FlatSymbolRefAttr(op.attributes[each]).value)
        return ir.WalkResult.ADVANCE

    private.walk(function, note)
    return found


def _reached(calls: dict[str, list[str]], first: list[str]) -> set[str]:
    seen: set[str] = set()
    left = list(first)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += calls.get(name, [])
    return seen
