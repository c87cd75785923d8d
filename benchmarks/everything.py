"""Measures everything that `docs/benchmarks.md` shows, one process after the other, and writes the page.

    python -m benchmarks.everything [--only training,decode] [--write docs/benchmarks.md]

It takes about 25 minutes of an idle machine; what each part measures and how stands in its own module.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ALL = "eager,inductor,ours,openxla,replay,jax"
SOME = "mlp,encoder,gpt2_like,llama_like"

PARTS: dict[str, list[str]] = {
    "training": ["run", "--workloads", "all", "--modes", "training,inference", "--contestants", ALL],
    "bfloat16": ["run", "--workloads", SOME, "--dtypes", "bfloat16", "--contestants", ALL, "--picture", "bfloat16"],
    "batches": [
        "run", "--workloads", "encoder,gpt2_like,resnet_like", "--modes", "inference", "--batches", "1,8,32",
        "--contestants", "eager,ours,openxla,replay,jax",
    ],
    "decode": ["decode", "--rounds", "3"],
    "host": ["dispatch", "--blocks", "10"],
    "memory": ["memory"],
    "second": ["second_process", "--workloads", "encoder,gpt2_like,resnet_like", "--rounds", "2"],
    "growth": ["growth", "--quick"],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
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
    if failed:
        sys.exit(f"these parts failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
