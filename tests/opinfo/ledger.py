"""The entries that do not pass yet. The ledger only shrinks: an entry that begins to pass must leave it.

`python -m tests.opinfo --update-ledger` checks the chosen entries and writes the results.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from .check import Verdict
from .entries import Entry

PATH = Path(__file__).with_name("ledger.json")


def known() -> dict[str, str]:
    """The reason by entry (`"svd complex64"`): the kind of failure, and why it stays."""
    found: dict[str, str] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return found


def update(verdicts: Iterable[Verdict]) -> tuple[list[str], list[str]]:
    """Add the failing entries and remove the passing ones; return the added and the removed entries."""
    before = known()
    after = dict(before)
    for verdict in verdicts:
        if verdict.failures:
            after.setdefault(str(verdict.entry), verdict.status)
        else:
            after.pop(str(verdict.entry), None)
    PATH.write_text(json.dumps(dict(sorted(after.items())), indent=0) + "\n")
    return sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())


def is_known(entry: Entry) -> bool:
    """Whether an entry is known to fail."""
    return str(entry) in known()
