"""Says of every aten overload how it runs on `xla`, and writes docs/operators.md.

    python tools/coverage.py            # the summary
    python tools/coverage.py --write    # docs/operators.md

It looks at what is registered; it runs nothing. Whether results are right is the question of `python -m tests.opinfo`.
"""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import torch

import torch_xla  # noqa: F401  registers the kernels
from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.cpu_fallback_list import ON_THE_CPU
from torch_xla._engine.dispatch.op_schema import Operator, operator_of
from torch_xla._engine.dispatch.register import aten_kernels
from torch_xla._engine.lowering.fx_graphs import decompositions
from torch_xla._engine.lowering.machinery.registry import rule_of

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"

KINDS = {
    "rule": "a lowering rule of our own, or a form (in place, `out=`) of an operator that has one",
    "view": "PyTorch makes the view; nothing runs",
    "kernel": "a kernel of our own: copies, factories, memory, indexing",
    "composed": "PyTorch composes it of other operators, and these run on the device",
    "decomposed": "PyTorch's decomposition is lowered as one operation",
    "refused": "layouts without an XLA form (sparse, quantised, nested, oneDNN): a clear error, or their own kernels",
    "CPU": "runs on the CPU: counted as `aten::<op>`, warned about once with the line",
}

# Operators of other libraries, devices and layouts, which are never called on dense tensors.
_OTHERS = re.compile(
    r"(^|_)(cudnn|miopen|mkldnn|cslt|cudart|cuda|mps|vulkan|nnpack|fbgemm|xnnpack|sparse|quantized?|dequantize|nested|"
    r"jagged|coo|csr|csc|bsr|bsc|coalesced?|crow|ccol|fake_quantize|q_per|q_scale|q_zero|int_repr|int4|int8pack|wint|"
    r"sobol|dense_dim|to_padded|from_padded|spdiags)(_|$|\d)"
)


def kind_of(name: str) -> str:
    """One of `KINDS` for the overload called `name`, such as "aten::add.Tensor"."""
    short = name.removeprefix("aten::")
    if _OTHERS.search(short.partition(".")[0]):
        return "refused"
    if private.has_kernel(name, "CompositeImplicitAutograd") and not private.has_kernel(name, "PrivateUse1"):
        return "composed"
    if not private.has_kernel(name, "PrivateUse1"):
        return "composed" if private.has_kernel(name, "CompositeExplicitAutograd") else "CPU"
    operator = operator_of(name)
    if short in aten_kernels.special_kernels():
        aliases = [returned.alias_info for returned in operator.overload._schema.returns]
        return "view" if any(alias and not alias.is_write for alias in aliases) else "kernel"
    return _computed(operator)


def _computed(operator: Operator) -> str:
    functional = operator.functional
    if functional is None:
        return "CPU"
    if rule_of(functional) is not None:
        return "rule"
    if functional._schema.name in ON_THE_CPU:
        return "CPU"
    if private.has_kernel(functional.name(), "CompositeImplicitAutograd"):
        return "composed"
    return "decomposed" if decompositions.exists(functional) else "CPU"


def overloads() -> dict[str, dict[str, str]]:
    """By operator: the kind of each of its overloads."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(private.all_operator_names()):
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            found[base][overload or "default"] = kind_of(name)
    return dict(found)


def summary(found: dict[str, dict[str, str]]) -> str:
    """How many overloads are of each kind."""
    counts = Counter(kind for kinds in found.values() for kind in kinds.values())
    total = sum(counts.values())
    lines = ["| kind | overloads | share | meaning |", "|---|--:|--:|---|"]
    lines += [f"| {kind} | {counts[kind]} | {counts[kind] / total:.1%} | {text} |" for kind, text in KINDS.items()]
    return "\n".join([*lines, f"| all | {total} | | |"])


def page(found: dict[str, dict[str, str]]) -> str:
    """docs/operators.md."""
    parts = [
        "# Which operators run on `xla`, and how",
        f"How every aten overload of PyTorch {torch.__version__.partition('+')[0]} runs on `xla`. Written by "
        "`python tools/coverage.py --write`; whether results are right is what `python -m tests.opinfo` checks.",
        summary(found),
        "## On the CPU, by decision",
        "\n".join(["| operator | reason |", "|---|---|", *(f"| `{op}` | {why} |" for op, why in ON_THE_CPU.items())]),
        "## Operators whose overloads all run alike",
        *_alike(found),
        "## Operators whose overloads differ",
        "\n".join(["| overloads | operators |", "|---|---|", *_rows(found)]),
    ]
    return "\n\n".join(parts) + "\n"


def _alike(found: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield a heading for each kind, and the operators of that kind alone, a line for each initial letter."""
    for kind in KINDS:
        names = [base for base, kinds in found.items() if set(kinds.values()) == {kind}]
        lines = [", ".join(f"`{name}`" for name in group) for _, group in groupby(names, key=_initial)]
        if lines:
            yield f"### {kind}"
            yield "\n\n".join(lines)


def _initial(name: str) -> str:
    return "_" if name.startswith("_") else name[0]


def _rows(found: dict[str, dict[str, str]]) -> list[str]:
    """Return the table of operators whose overloads are of several kinds; operators that differ alike share a row."""
    alike: dict[str, list[str]] = defaultdict(list)
    for base, kinds in found.items():
        by_kind: dict[str, list[str]] = defaultdict(list)
        for overload, kind in kinds.items():
            by_kind[kind].append(overload)
        if len(by_kind) > 1:
            alike["; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())].append(f"`{base}`")
    return [f"| {pattern} | {', '.join(names)} |" for pattern, names in sorted(alike.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--list", help="print the overloads of one kind")
    args = parser.parse_args()
    found = overloads()
    if args.list:
        print(*(f"{base}.{o}" for base, kinds in found.items() for o, k in kinds.items() if k == args.list), sep="\n")
    print(summary(found))
    if args.write:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
