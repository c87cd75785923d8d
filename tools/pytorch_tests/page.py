"""Write the results of the runs as a line for the terminal and as docs/pytorch_tests.md."""

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

from .results import BAD, Results

PAGE = Path(__file__).parents[2] / "docs" / "pytorch_tests.md"
REASONS = Path(__file__).with_name("reasons.toml")

_HEAD = """# Which of PyTorch's own tests pass

```
apt-get source pytorch  # from Debian, or PyTorch's sources from elsewhere; this repository has none of them
python -m tools.pytorch_tests pytorch-2.6.0/test                        # every file, on the CPU and on xla
python -m tools.pytorch_tests pytorch-2.6.0/test test_view_ops -k flat  # some of it
python -m tools.pytorch_tests pytorch-2.6.0/test --write                # this page, from the last runs
TORCH_TEST_DEVICES=tools/pytorch_test_base.py python pytorch-2.6.0/test/test_torch.py -k test_put_xla  # as PyTorch does
```

A test that passes on the CPU without this package is run on `xla`. There it passes, is skipped (PyTorch means it for
other devices), fails, takes too long, or ends its process. Each runs in its own process. XLA optimises less in these
runs (`tests/support/compiler.py`).

"""


def passing(results: Results, where: str = "xla") -> tuple[int, int]:
    """How many tests pass there, and of how many that pass on the CPU and are meant for the device."""
    outcomes = Counter(ending["outcome"] for ending in results.devices[where].values())
    good = outcomes["passed"] + outcomes["failed as expected"]
    return good, good + sum(outcomes[bad] for bad in BAD)


def summary(results: Results, where: str = "xla") -> str:
    """One line about one file."""
    good, of = passing(results, where)
    endings = results.devices[where].values()
    outcomes = Counter(ending["outcome"] for ending in endings)
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    seconds = sum(float(ending["seconds"]) for ending in endings)
    return f"{results.name}: {good} of {of} ({_share(good, of)}); {told}; {seconds:.0f} s of processor time"


def page(every: Sequence[Results]) -> str:
    """The page: a table of files, every test that does not pass, by reason, and the CPU's beside this package."""
    parts = [_HEAD, _versions(every), "\n".join(_table(every)), "\n\n## What does not pass\n", _why(every, "xla")]
    good, of = (sum(column) for column in zip(*(passing(results, "beside") for results in every), strict=True))
    if of:
        parts.append("\n## On the CPU, with this package imported\n\n")
        parts.append(
            f"{good:,} of {of:,} tests that pass on the CPU pass there with `import torch_xla` before them too "
        )
        parts.append("(`--beside`).\n" + _why(every, "beside"))
    return "".join(parts)


def _why(every: Sequence[Results], where: str) -> str:
    """Each test that does not pass there, with the reason."""
    reasons = tomllib.loads(REASONS.read_text()).get("reason", [])
    said: dict[str, list[str]] = {reason["why"]: [] for reason in reasons}
    unexplained: list[str] = []
    for results in every:
        for test, ending in results.devices[where].items():
            if ending["outcome"] not in BAD:
                continue
            full = f"{results.name}.{test}"
            why = next((r["why"] for r in reasons if any(fnmatchcase(full, p) for p in r["tests"])), None)
            if why is None:
                unexplained.append(f"- `{full}`: {_told(ending)}")
            else:
                said[why].append(f"- `{full}`" + (f": {ending['outcome']}" if ending["outcome"] != "failed" else ""))
    text = "".join(f"\n{why.strip()}\n\n" + "\n".join(lines) + "\n" for why, lines in said.items() if lines)
    return text + ("\nNot looked into yet:\n\n" + "\n".join(unexplained) + "\n" if unexplained else "")


def _versions(every: Sequence[Results]) -> str:
    sampled = [r for r in every if r.devices["cpu"] and len(r.devices["cpu"]) < len(r.tests)]
    text = f"PyTorch {version('torch').partition('+')[0]} and JAX {version('jax')} on the CPU, tests of PyTorch 2.6.\n"
    if sampled:
        text += "Of a long file one test of n was run, by the checksum of its name (`--every`, `--seed`).\n"
    text += "`of` counts the tests that ran on `xla` and are meant for it: of some files only the first.\n"
    return text + "\n"


def _table(every: Sequence[Results]) -> list[str]:
    rows = ["| file | tests | run | pass on the CPU | not for this device | of | pass on xla | |", "|---|" + "--:|" * 7]
    sums = [0] * 6
    for results in every:
        if not results.devices["xla"]:
            continue
        good, of = passing(results)
        cpu = [test for test, ending in results.devices["cpu"].items() if ending["outcome"] == "passed"]
        skipped = sum(ending["outcome"] == "skipped" for ending in results.devices["xla"].values())
        numbers = [len(results.tests), len(results.devices["cpu"]), len(cpu), skipped, of, good]
        sums = [total + number for total, number in zip(sums, numbers, strict=True)]
        rows.append(f"| {results.name} | " + " | ".join(map(str, numbers)) + f" | {_share(good, of)} |")
    rows.append("| all | " + " | ".join(map(str, sums)) + f" | {_share(sums[5], sums[4])} |")
    return rows


def _told(ending: dict[str, str | float]) -> str:
    message = str(ending["message"]).partition("To execute this test")[0]
    message = re.sub(r"\s+", " ", message).strip().replace("`", "'").replace("|", "\\|")
    message = re.sub(r"0x[0-9a-f]+", "0x…", message)
    return f"{ending['outcome']}: {message[:150] + '…' if len(message) > 150 else message}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"
