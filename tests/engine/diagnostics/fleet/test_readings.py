"""The numbers that exporters write."""

import torch

import torch_xla
from torch_xla._engine.diagnostics.fleet import readings
from torch_xla._engine.metrics import accounts


def test_totals_never_shrink_and_each_number_is_there_once() -> None:
    first = readings.read()
    (torch.rand(5, device="xla") * 3).sum().item()
    torch_xla.sync()
    second = {(each.name, *each.labels.values()): each.value for each in readings.read()}
    assert len(second) == len(readings.read())
    for each in first:
        if each.is_total:
            assert second[(each.name, *each.labels.values())] >= each.value
    assert {key[1] for key in second if key[0] == "time"} == set(accounts.NAMES)
    assert second["memory.used", "0"] > 0 and second["programs",] > 0


def test_labels_tell_the_process() -> None:
    assert readings.labels_of_process() == {"rank": "0"}
