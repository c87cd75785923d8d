"""Parse metrics reports into numbers, and compare a run with earlier runs."""

import ast
import math
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .report import FALLBACK

# Name of the data points that count operators on the CPU.
FALLBACKS = "aten_ops_sum__Value"

_PERCENTILE = re.compile(r"(?P<percent>[\d.]+)%=(?P<value>[^;]+)")

# Any of its units may be left out, but not all.
_DURATION = re.compile(r"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?(?:([\d.]+)us)?")
_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0, 1e-3, 1e-6)
_SIZE = re.compile(r"([\d.]+)(B|KB|MB|GB|TB|PB)")
_MEGABYTES = {"B": 2.0**-20, "KB": 2.0**-10, "MB": 1.0, "GB": 2.0**10, "TB": 2.0**20, "PB": 2.0**30}


def parse_report(report: str, dehumanize: bool) -> dict[str, Any]:
    """Return every number of a report by its name, such as `CompileTime__Percentile_50_sec`.

    Without `dehumanize` the values are the text of the report.
    """
    found: dict[str, Any] = {}
    metric = ""
    lines = [line.strip() for line in report.splitlines()]
    for line, next_line in zip(lines, [*lines[1:], ""], strict=False):
        label, _, text = (part.strip() for part in line.partition(": "))
        if label == "Metric":
            metric = text
        elif label == "Counter" and next_line.startswith("Value:"):
            value = next_line.removeprefix("Value:").strip()
            found[f"{text}__Value"] = int(value) if dehumanize else value
            metric = ""
        elif metric:
            for part, each in _numbers_in(line, label, text):
                number, unit = _number_of(each) if dehumanize else (each.strip(), "")
                found[f"{metric}__{part}{unit}"] = number
    return found


def _numbers_in(line: str, label: str, text: str) -> list[tuple[str, str]]:
    """Return the names and texts of the numbers in one line of a metric."""
    percentiles = [(f"Percentile_{each['percent']}", each["value"]) for each in _PERCENTILE.finditer(line)]
    if percentiles or not text:
        return percentiles
    # Older reports call the sum of the samples a counter.
    return [("Accumulator" if label == "Counter" else label, text.removesuffix(" / second"))]


def _number_of(text: str) -> tuple[float, str]:
    """Return a number and the suffix of its unit: seconds, megabytes, or none."""
    text = text.strip()
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return sum(float(part) * unit for part, unit in zip(duration.groups(), _SECONDS, strict=True) if part), "_sec"
    size = _SIZE.fullmatch(text)
    if size is not None:
        return float(size[1]) * _MEGABYTES[size[2]], "_mb"
    return float(text), ""


def data_points(reports: Sequence[str]) -> dict[str, list[float]]:
    """Return the values that each number took in the reports: 0 for a counter that a report does not show."""
    parsed = [_with_fallbacks(parse_report(report, dehumanize=True)) for report in reports]
    points: dict[str, list[float]] = {}
    for name in sorted({name for each in parsed for name in each}):
        if name.endswith("__Value"):
            points[name] = [each.get(name, 0) for each in parsed]
        else:
            points[name] = [each[name] for each in parsed if name in each]
    return points


def _with_fallbacks(numbers: dict[str, Any]) -> dict[str, Any]:
    return numbers | {FALLBACKS: sum(value for name, value in numbers.items() if name.startswith(FALLBACK))}


def differences(points: Mapping[str, Sequence[float]], report: str, config: Mapping[str, str]) -> str:
    """Return one line for each number of the report that its expression in `config` does not accept; else nothing."""
    if "base_expression" not in config:
        raise ValueError(f"config has {sorted(config)}; it must have 'base_expression', such as 'v <= v_mean * 1.1'")
    current = _with_fallbacks(parse_report(report, dehumanize=True))
    lines = []
    for name, values in sorted(points.items()):
        value = current.get(name, 0 if name.endswith("__Value") else None)
        if value is None or not values:
            continue
        mean = float(statistics.mean(values))  # exact: the mean of equal values is that value
        known = {"v": float(value), "v_mean": mean, "v_stddev": statistics.pstdev(values)}
        expression = config.get(f"{name}_expression", config["base_expression"])
        if not evaluate(expression, known):
            shown = ", ".join(f"{key} = {number:.6g}" for key, number in known.items())
            lines.append(f"{name}: {expression} does not hold: {shown}, over {len(values)} reports\n")
    return "".join(lines)


_OPERATORS: dict[type, Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., object]] = {"abs": abs, "min": min, "max": max, "sqrt": math.sqrt}


def evaluate(expression: str, known: Mapping[str, float]) -> object:
    """Evaluate an expression of numbers, the names in `known`, arithmetic and comparisons; nothing else runs."""
    try:
        return _evaluate(ast.parse(expression, mode="eval").body, known)
    except (SyntaxError, KeyError, NotImplementedError) as error:
        names = ", ".join([*known, *_FUNCTIONS])
        raise ValueError(
            f"{expression!r} is no expression of numbers, comparisons and these names: {names} ({error})"
        ) from error


def _evaluate(node: ast.AST, known: Mapping[str, float]) -> object:
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.Name(name):
            return known[name]
        case ast.BinOp(left, kind, right):
            return _OPERATORS[type(kind)](_evaluate(left, known), _evaluate(right, known))
        case ast.UnaryOp(kind, operand):
            return _OPERATORS[type(kind)](_evaluate(operand, known))
        case ast.BoolOp(ast.And(), parts):
            return all(_evaluate(part, known) for part in parts)
        case ast.BoolOp(_, parts):
            return any(_evaluate(part, known) for part in parts)
        case ast.Compare(left, kinds, others):
            sides = [_evaluate(side, known) for side in (left, *others)]
            return all(_OPERATORS[type(k)](a, b) for k, a, b in zip(kinds, sides, sides[1:], strict=False))
        case ast.Call(ast.Name(name), arguments, []):
            return _FUNCTIONS[name](*[_evaluate(argument, known) for argument in arguments])
    raise NotImplementedError(ast.unparse(node))
