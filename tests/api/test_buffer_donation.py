"""The next step takes marked memory, and reading it afterwards raises."""

import pytest
import torch

import torch_xla
from torch_xla._engine.tensor.storage import value_of
from torch_xla.debug import metrics
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config


@pytest.mark.parametrize("marked", [False, True])
def test_marked_memory_is_taken_although_it_is_held(marked: bool) -> None:
    x = torch.ones(64, device="xla")
    torch_xla.sync()
    metrics.clear_counters()
    if marked:
        assert torch_xla._XLAC._set_buffer_donation(x, True)
        assert metrics.counter_value("XlaSetBufferDonation") == 1
    assert torch_xla._XLAC._get_buffer_donation(x) is marked
    y = x + 1
    torch_xla.sync()
    assert y.tolist() == [2.0] * 64
    assert value_of(x).buffer.is_deleted() is marked
    if not marked:
        assert x.tolist() == [1.0] * 64
        return
    with pytest.raises(RuntimeError, match="was given to a program that ran since"):
        x.cpu()
    z = x * 2
    with pytest.raises(RuntimeError, match="was given to a program that ran since"):
        z.cpu()


def test_what_is_marked_and_read_by_nobody_stays() -> None:
    x = torch.ones(64, device="xla")
    assert not torch_xla._XLAC._set_buffer_donation(x, True)  # not computed yet
    torch_xla.sync()
    with alias_with_buffer_donor_config():
        assert torch_xla._XLAC._xla_get_enable_alias_with_buffer_donor_config()
        assert torch_xla._XLAC._set_buffer_donation(x, True)
        y = torch.zeros(64, device="xla") + 1
        torch_xla.sync()
    assert not torch_xla._XLAC._xla_get_enable_alias_with_buffer_donor_config()
    assert torch_xla._XLAC._set_buffer_donation(x, False)
    z = x + y
    torch_xla.sync()
    assert (z.tolist(), x.tolist()) == ([2.0] * 64, [1.0] * 64)


def test_the_operator_marks_what_is_computed() -> None:
    x = torch.ones(64, device="xla")
    torch_xla.sync()
    assert torch.ops.xla.dynamo_set_buffer_donor_(x, True) is not None
    assert torch_xla._XLAC._get_buffer_donation(x)
    y = x + 1
    torch_xla.sync()
    assert value_of(x).buffer.is_deleted() and y.tolist() == [2.0] * 64
    doubled = torch.compile(lambda t: torch.ops.xla.dynamo_set_buffer_donor_(t * 2, True), backend="openxla")
    assert doubled(y).tolist() == [4.0] * 64
    assert torch.ops.xla.dynamo_set_buffer_donor_(torch.ones(2), True).tolist() == [1.0, 1.0]
