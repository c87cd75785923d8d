"""Memory that a program donates although its tensor is still referenced."""

import pytest
import torch

import torch_xla
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import donation
from torch_xla._engine.tensor.storage import value_of


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation.Donor, "exists", False)


def test_a_mark_is_set_and_taken_back() -> None:
    value = value_of(torch.ones(3).to("xla"))
    assert donation.mark(value, True) and donation.Donor.exists
    assert donation.slots_of([value]) == (0,) and donation.without_donors([value], b"\1") == b"\0"
    assert donation.mark(value, False)
    assert donation.slots_of([value]) == () and donation.without_donors([value], b"\1") == b"\1"
    assert counters.value_of("XlaSetBufferDonation") == 2


def test_what_has_no_memory_of_its_own_is_not_marked() -> None:
    pending, shared = torch.ones(3, device="xla") + 1, torch.ones(3).to("xla")
    value_of(shared).shared = True
    assert not donation.mark(value_of(pending), True) and not donation.mark(value_of(shared), True)
    assert not donation.Donor.exists


def test_the_next_program_that_reads_it_takes_it_and_who_reads_it_again_is_told() -> None:
    x = torch.arange(1024.0).to("xla")
    value, spare = value_of(x), value_of(torch.ones(3).to("xla"))
    donation.mark(value, True)
    donation.refuse_taken([value, spare])
    y = x * 3
    torch_xla.sync(wait=True)
    assert y[2].item() == 6 and value.buffer.is_deleted()
    with pytest.raises(RuntimeError, match="the memory of this tensor .* was given to a program that ran since"):
        donation.refuse_taken([spare, value])
    with pytest.raises(RuntimeError, match="the memory of this tensor .* was given to a program that ran since"):
        x.cpu()
