"""Say how each aten overload runs on `xla`, and write docs/operators.md.

    python tools/coverage.py              # the summary
    python tools/coverage.py glu glu_jvp  # the overloads of two operators
    python tools/coverage.py --list CPU   # all overloads of one kind
    python tools/coverage.py --write      # docs/operators.md

It reads what is registered and runs nothing. `python -m tests.opinfo` checks whether results are right.
"""

import argparse
import re
from collections import Counter, defaultdict
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

# Operators that only PyTorch's own tests call.
_OF_TESTS = re.compile("`_(test_|foobar)")


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
    """Return the text of docs/operators.md."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for operator, reason in ON_THE_CPU.items():
        by_reason[reason].append(f"`{operator}`")
    parts = [
        "# Which operators run on `xla`, and how",
        f"How the aten overloads of PyTorch {torch.__version__.partition('+')[0]} run. An operator that this page does "
        "not name runs on the device; `python tools/coverage.py glu glu_jvp` lists the overloads of two. "
        "Whether results are right is [another page](operator_database.md). "
        "`python tools/coverage.py --write` writes this one.",
        summary(found),
        "## On the CPU, by decision",
        "\n".join(f"- {', '.join(operators)}: {reason}." for reason, operators in by_reason.items()),
        "## Operators with an overload that runs on the CPU",
        ", ".join(name for name in _named(found, "CPU") if not _OF_TESTS.match(name)),
        "## Operators that are refused",
        "Operators that make or take sparse, quantised or strided nested tensors, and those of cuDNN, MIOpen, oneDNN, "
        "FBGEMM, MPS and Vulkan: `python tools/coverage.py --list refused`.",
    ]
    return "\n\n".join(parts) + "\n"


def _named(found: dict[str, dict[str, str]], kind: str) -> list[str]:
    """Return the operators with overloads of `kind`, followed by these overloads if others are of another kind."""
    named = []
    for base, kinds in found.items():
        overloads_of_kind = [overload for overload, each in kinds.items() if each == kind]
        if overloads_of_kind:
            alike = len(overloads_of_kind) == len(kinds)
            named.append(f"`{base}`" if alike else f"`{base}` ({', '.join(overloads_of_kind)})")
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--list", help="print the overloads of one kind")
    parser.add_argument("operators", nargs="*", help="print how the overloads of these run")
    args = parser.parse_args()
    found = overloads()
    if args.list:
        print(*(f"{base}.{o}" for base, kinds in found.items() for o, k in kinds.items() if k == args.list), sep="\n")
    for name in args.operators:
        print(*(f"{name}.{overload}: {kind}" for overload, kind in found[name].items()), sep="\n")
    if not args.operators:
        print(summary(found))
    if args.write:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
