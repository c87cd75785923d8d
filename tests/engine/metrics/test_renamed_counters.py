"""A counter can be read by its PyTorch/XLA name, and returns the count of its new name."""

import torch

import torch_xla
from torch_xla._engine.metrics.renamed_counters import _SUCCESSORS, current
from torch_xla.debug import metrics as met


def test_an_old_name_gives_the_figures_of_the_new_one() -> None:
    for _ in range(2):
        (torch.ones(3, device="xla") * 7.5 - 1).cpu()
        torch_xla.sync()
    assert met.counter_value("CachedSyncTensors") == met.counter_value("CachedCompile") != 0
    old, new = met.metric_data("TransferFromServerTime"), met.metric_data("TransferFromDeviceTime")
    assert old == new is not None
    assert "CachedSyncTensors" not in met.counter_names() and "TransferFromServerTime" not in met.metric_names()


def test_a_report_can_be_asked_for_by_old_names() -> None:
    torch.ones(3).to("xla")
    short = met.short_metrics_report(metric_names=["TransferToServerTime"])
    assert "TransferToDeviceTime" in short


def test_names_of_today_stay_and_none_leads_to_another_old_one() -> None:
    assert current("CompileTime") == "CompileTime"
    assert not set(_SUCCESSORS) & set(_SUCCESSORS.values())
