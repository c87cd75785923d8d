"""Find the first NaN: run a step with results that are not finite again, operator by operator."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ... import config
from ...compat.names.torch import schema_of
from ...errors import NotFinite
from ...ir.graph_text import name_of, shape
from ...lowering.fx_graphs import interpreter
from ...metrics.user_lines import Line, text
from ...runtime.device_assignment import Target
from . import step_inspection
from .op_by_op import Stop, look_inside, walk
from .step_inspection import Run, any_of, is_inexact

Test = Callable[[jax.Array], jax.Array]

TESTS: dict[str, Test] = {"NaN": jnp.isnan, "inf": jnp.isinf}


@dataclass(frozen=True, slots=True)
class FirstNonFinite:
    """Where the first NaN or inf of a step comes from, and how to say it."""

    what: str  # "NaN", "inf"
    operator: str | None  # None: it came with an input, or from the program as a whole
    line: Line | None
    report: str


@contextmanager
def searching(also_inf: bool) -> Iterator[None]:
    """Raise `NotFinite` at the end of each step in the block that computes the first NaN, or inf."""
    with step_inspection.inspecting(_raiser(also_inf)):
        yield


_asked: list[tuple[str, step_inspection.Inspector]] = []


def apply_settings() -> None:
    """Start or end the search for the whole program, as XLA_FIND_NAN says."""
    wanted = config.find_nan()
    if _asked and _asked[0][0] != wanted:
        step_inspection.stop(_asked.pop()[1])
    if wanted and not _asked:
        inspector = _raiser(wanted == "inf")
        step_inspection.start(inspector)
        _asked.append((wanted, inspector))


def _raiser(also_inf: bool) -> Callable[[Run], None]:
    def inspect(run: Run) -> None:
        finding = find(run, also_inf)
        if finding is not None:
            error = NotFinite(finding.report)
            error.operator, error.line = finding.operator, finding.line  # type: ignore[attr-defined]
            raise error

    return inspect


def find(run: Run, also_inf: bool) -> FirstNonFinite | None:
    """Return the origin of the first NaN of a run, or of the first inf if there is none; `None` if its results have
    neither.

    An inf is looked for on request alone: masks are full of them.
    """
    for what, test in TESTS.items():
        if (what == "NaN" or also_inf) and any(any_of(test, run.outputs)):
            return _origin(run, what, test)
    return None


def _origin(run: Run, what: str, test: Test) -> FirstNonFinite:
    had_it = any_of(test, run.inputs)
    first_inf = ""
    for stop in walk(run.graph, run.inputs, run.numbers, run.keys, run.program.target):
        if any(any_of(test, stop.results)) and not any(any_of(test, stop.operands)):
            because = first_inf if what == "NaN" and any(any_of(jnp.isinf, stop.operands)) else ""
            return _of_operator(run, what, test, stop, because)
        if what == "NaN" and not first_inf and any(any_of(jnp.isinf, stop.results)):
            first_inf = f"{name_of(stop.operation)}{_at(run.lines[stop.number])}"
    if any(had_it):
        return _of_input(run, what, had_it.index(True))
    report = (
        f"The results of a step have a {what} that none of its {len(run.graph.operations)} operators makes when they "
        f"run one by one: it comes from how XLA compiles them together, such as a lower precision of fused operations. "
        f"torch_xla.debug.capture_step() keeps the step for a bug report."
    )
    return FirstNonFinite(what, None, None, report)


def _of_operator(run: Run, what: str, test: Test, stop: Stop, first_inf: str) -> FirstNonFinite:
    line = run.lines[stop.number]
    name = name_of(stop.operation)
    inner = _inside(test, stop, run.program.target)
    if inner is not None:
        # The operator is a graph of others, by torch.compile or by a decomposition of PyTorch's.
        within, line = f", within {name}{_at(line)}", inner[1] or line
        name = inner[0]
        rows = [f"The first {what} of this step comes from {name}{_at(line)}{within}:"]
    else:
        rows = [f"The first {what} of this step comes from {name}{_at(line)}:"]
    specs = run.graph.specs
    place: tuple[int, ...] | None = None
    for part, result in enumerate(stop.results):
        bad = np.asarray(test(result)) if is_inexact(result) else np.zeros(0, bool)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            spec = specs[stop.operation.first_output + part]
            count = f"{int(bad.sum())} of {bad.size} elements are {what}" if bad.ndim else f"it is {what}"
            rows.append(f"  its result {shape(spec)}: {count}" + (f", the first at {list(place)}" if place else ""))
            break
    made_by = _producers(run)
    for slot, operand in zip(stop.operation.operands, stop.operands, strict=True):
        rows.append(f"  it read {shape(specs[slot])} {made_by[slot]}: {_described(operand, place)}")
    if stop.numbers:
        rows.append(f"  with {', '.join(map(repr, stop.numbers))}")
    if first_inf:
        rows.append(f"The first inf of this step comes from {first_inf}.")
    return FirstNonFinite(what, name, line, "\n".join(rows))


def _inside(test: Test, stop: Stop, target: Target) -> tuple[str, Line | None] | None:
    """Return the operator that makes the first one inside a graph that is one operation; `None` if it is no graph."""
    found: list[tuple[str, Line | None]] = []

    def watch(node: torch.fx.Node, operands: object, results: object) -> None:
        arrays = [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)]
        read = [leaf for leaf in jax.tree.leaves(operands) if isinstance(leaf, jax.Array)]
        if not found and any(any_of(test, arrays)) and not any(any_of(test, read)):
            found.append((str(schema_of(node.target).name), interpreter.line_of(node)))

    look_inside(stop, watch, target)
    return found[0] if found else None


def _of_input(run: Run, what: str, index: int) -> FirstNonFinite:
    line = run.input_lines[index]
    report = (
        f"A {what} came into this step with an input, {shape(run.graph.inputs[index])}"
        f"{_at(line, 'made at')}: no operator of the step makes one of its own. It was there before the search began, "
        f"or was uploaded from the host."
    )
    return FirstNonFinite(what, None, line, report)


def _at(line: Line | None, word: str = "at") -> str:
    return f" {word} {text(line)}" if line is not None else ""


def _producers(run: Run) -> list[str]:
    """Return for each slot, what made it."""
    made_by = [f"an input{_at(line, 'made at')}" for line in run.input_lines]
    for operation, line in zip(run.graph.operations, run.lines, strict=True):
        made_by += [f"from {name_of(operation)}{_at(line)}"] * len(operation.plan.outputs)
    return made_by


def _described(array: jax.Array, place: Sequence[int] | None) -> str:
    """Return the range of an operand, and its element at the place of the finding if it has such a place."""
    host: Any = np.asarray(array)
    if not host.size:
        return "empty"
    wide = host.astype(np.complex128 if np.iscomplexobj(host) else np.float64)
    if not wide.ndim:
        return f"{wide[()]:.6g}"
    size = np.abs(wide) if np.iscomplexobj(wide) else wide
    known = size[~np.isnan(size)]
    words = [f"from {known.min():.6g} to {known.max():.6g}" if known.size else "all NaN"]
    if np.iscomplexobj(wide):
        words = [f"of absolute value {words[0]}"]
    if place is not None and len(place) == wide.ndim and all(i < n for i, n in zip(place, wide.shape, strict=True)):
        words.append(f"{wide[tuple(place)]:.6g} at {list(place)}")
    return ", ".join(words)
