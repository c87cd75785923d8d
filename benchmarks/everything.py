"""Measure everything that `docs/benchmarks.md` shows, one process after the other, and write the page.

    python -m benchmarks.everything [--only training,decode] [--write docs/benchmarks.md]

It takes about 25 minutes of an idle machine. The module of each part describes its measurements. The part
`hugging_face` is left out if `transformers` is not installed: `pip install transformers` into the same environment.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

ALL = "eager,inductor,ours,openxla,replay,jax"
# Inductor compiles for longer than all others together.
QUICK = "eager,ours,openxla,replay,jax"

PARTS: dict[str, list[str]] = {
    "training": ["run", "--workloads", "all", "--modes", "training", "--contestants", ALL],
    "inference": [
        "run", "--workloads", "all", "--modes", "inference", "--contestants", ALL, "--picture", "inference",
    ],
    "bfloat16": [
        "run", "--workloads", "mlp,gpt2_like,llama_like", "--dtypes", "bfloat16", "--contestants", QUICK,
        "--picture", "bfloat16",
    ],
    "decode": ["decode", "--rounds", "3", "--batches", "1"],
    "host": ["dispatch"],
    "narrow": ["host"],
    "diagnostics": ["diagnostics", "--turns", "20"],
    "memory": ["memory"],
    "whole": ["whole_process"],
    "second": ["second_process", "--rounds", "2"],
    "small": ["small_programs"],
    "growth": ["growth", "--quick"],
    "hugging_face": [
        "run", "--workloads", "hugging_face", "--contestants", "eager,inductor,ours,openxla,replay",
        "--title", "Hugging Face", "--picture", "hugging_face",
    ],
}  # fmt: skip


def possible() -> list[str]:
    """The parts for which all is installed."""
    if importlib.util.find_spec("transformers") is not None:
        return list(PARTS)
    return [name for name in PARTS if name != "hugging_face"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(possible()), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--write", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    failed = []
    for name in args.only.split(","):
        started = time.perf_counter()
        module, *options = PARTS[name]
        command = [sys.executable, "-m", f"benchmarks.{module}", *options, "--write", str(args.write)]
        if subprocess.run(command).returncode:
            failed.append(name)  # the other parts are worth having without it
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "benchmarks.readme"], check=True)
    if failed:
        sys.exit(f"these parts failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
