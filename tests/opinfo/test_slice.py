"""A slice of PyTorch's operator database; all of it: `python -m tests.opinfo`. The ledger only shrinks."""

import jax
import pytest

from torch_xla._engine.dispatch.cpu_fallback_list import ON_THE_CPU
from torch_xla._engine.step.schedule import clear_schedules

from . import ledger
from .check import check_entry
from .entries import DTYPES, database, slice_of

# One of this number of entries, and the number of samples of each.
EVERY = 240
OFTEN = 120
EXHAUSTIVE = 60
SAMPLES = 4
# A dtype of real, whole and complex numbers; `make test-slow` asks every dtype, and of more entries.
SOON = [(dtype, EVERY) for dtype in ("float32", "int64", "complex64")]
LATER = [
    pytest.param(dtype, every, marks=mark)
    for every, mark in ((OFTEN, pytest.mark.slow), (EXHAUSTIVE, pytest.mark.exhaustive))
    for dtype in DTYPES
]
# How many entries of the database do not pass yet. Lower it with the ledger; never raise it.
MOST_KNOWN = 2


@pytest.mark.parametrize(("dtype", "every"), [*SOON, *LATER])
def test_a_slice_of_the_database_is_as_on_the_cpu(dtype: str, every: int) -> None:
    chosen = [entry for entry in slice_of(every) if entry.dtype == dtype]
    assert chosen, "none is looked at: take more entries"
    found = []
    for entry in chosen:
        verdict = check_entry(entry, SAMPLES)
        unexplained = sorted(set(verdict.fallbacks) - set(ON_THE_CPU))
        if unexplained:
            found.append(f"{entry} ran on the CPU, and no decision says why: {unexplained}")
        if verdict.failures and not ledger.is_known(entry):
            found.append(f"{entry}: {verdict.failures[0]}")
        clear_schedules()
        jax.clear_caches()
    assert not found, "\n".join(found)


def test_the_ledger_only_shrinks() -> None:
    known = ledger.known()
    assert len(known) == MOST_KNOWN, "set MOST_KNOWN to what the ledger holds, if that is less than before"
    named = {name.rpartition(" ")[0] for name in known}
    assert named <= database().keys(), f"not in the database: {sorted(named - database().keys())}"


def test_what_is_in_the_ledger_does_not_pass() -> None:
    entries = [entry for entry in slice_of(4) if ledger.is_known(entry)]
    passing = [str(entry) for entry in entries if not check_entry(entry, SAMPLES * 3).failures]
    assert not passing, f"strike from the ledger: {passing}"
