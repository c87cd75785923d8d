"""The signs of zeros of a sample of the operator database; all of it: `python -m tests.opinfo --zeros`."""

import zlib

import jax
import pytest
import torch

from torch_xla._engine.step.schedule import clear_schedules

from .entries import Entry, entries
from .zeros import check_zeros, is_left_out

# One entry of so many.
EVERY = 60
OFTEN = 8


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPUs and TPUs keep XLA's rewrites")
@pytest.mark.parametrize(
    ("dtype", "every"),
    [
        ("float32", EVERY),
        pytest.param("float32", OFTEN, marks=pytest.mark.slow),
    ],
)
def test_zeros_have_the_signs_of_the_cpu(dtype: str, every: int) -> None:
    found = []
    for entry in entries([dtype]):
        if zlib.crc32(str(entry).encode()) % every == 0 and not is_left_out(entry):
            found.extend(f"{entry}: {kind}: {text}" for kind, text in check_zeros(entry, 2).failures)
            clear_schedules()
    assert not found, "\n".join(found)


def test_a_wrong_sign_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "neg", lambda x: -x if x.device.type == "cpu" else x * 1)
    from .entries import database

    monkeypatch.setattr(database()["neg"], "op", torch.neg)
    assert check_zeros(Entry("neg", "float32"), 1).failures
