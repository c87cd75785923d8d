"""Waits of the host are counted by line, and can be refused."""

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug as debug

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def a_fresh_history() -> Iterator[None]:
    torch_xla.sync(wait=True)
    debug.clear_history()
    yield


def shown(tensor: Tensor) -> None:
    with redirect_stdout(io.StringIO()):
        print(tensor)


WAYS: dict[str, Callable[[Tensor], object]] = {
    "if tensor": lambda t: bool(t),
    "item": lambda t: t.item(),
    "float": lambda t: float(t),
    "print": shown,
    "cpu": lambda t: t.cpu(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.cpu().numpy(),
    "nonzero": lambda t: t.nonzero(),
    "masked": lambda t: t.expand(3)[t.expand(3) > 0],
    "equal": lambda t: torch.equal(t, t + 1),
    "format": lambda t: f"{t:.1f}",
    "to host in a batch": lambda t: xm.xla_device() and torch_xla._XLAC._xla_get_cpu_tensors([t]),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_looking_at_a_value_is_counted_at_its_line(way: str) -> None:
    t = torch.rand((), device="xla") + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WAYS[way](t)
    costs = debug.sync_costs()
    assert costs and all(cost.line[0] == __file__ for cost in costs)
    assert sum(cost.reads for cost in costs) >= 1
    assert sum(cost.forced for cost in costs) >= 1
    assert all(cost.seconds > 0 for cost in costs)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_looking_at_a_value_can_be_refused(way: str) -> None:
    t = torch.rand((), device="xla") + 1
    with debug.no_transfer(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(debug.TransferRefused, match=rf"no_transfer\(\) refuses .*{HERE}:\d+ in "):
            WAYS[way](t)
    assert 1 <= t.item() < 2


def test_the_dearest_line_comes_first_with_its_source() -> None:
    for size in range(300, 310):  # to copy a value takes longer where others have the cores, at times
        debug.clear_history()
        x = torch.ones(size, size, device="xla")
        torch_xla.sync()
        for _ in range(3):
            y = x @ x
            line = sys._getframe().f_lineno + 1
            y.sum().item()
        x.cpu()
        first, *others = debug.sync_costs()
        if first.reads == 3:
            break
    assert first.line == (__file__, line, "test_the_dearest_line_comes_first_with_its_source")
    assert (first.reads, first.forced, first.bytes, first.waits) == (3, 3, 12, 0)
    assert first.seconds >= first.compiling > 0 and first.longest <= first.seconds
    assert first.source == "y.sum().item()"
    assert [cost.forced for cost in others] == [0]
    text = debug.sync_tax()
    assert text.startswith("4 values brought to the host, ")
    assert f"{HERE}:{line} in test_the_dearest_line_comes_first_with_its_source: y.sum().item()\n" in text


def test_a_wait_that_was_asked_for_is_counted_and_a_step_is_not() -> None:
    torch.ones(3, device="xla").add(1)
    torch_xla.sync()
    assert debug.sync_costs() == []
    assert debug.sync_tax() == "The host waited for no value.\n"
    torch_xla.sync(wait=True)
    [cost] = debug.sync_costs()
    assert (cost.waits, cost.reads) == (1, 0)


def test_what_is_taken_elsewhere_is_counted_as_forced() -> None:
    x = torch.ones(3, device="xla") + 1
    torch_xla._XLAC._unsafe_buffer_pointer(x)
    [cost] = debug.sync_costs()
    assert (cost.forced, cost.reads, cost.waits) == (1, 0, 0)
    y = torch.ones(3, device="xla") + 2
    with debug.no_transfer(), pytest.raises(debug.TransferRefused, match="refuses to bring a value to the host"):
        torch_xla._XLAC._unsafe_buffer_pointer(y)


def test_a_step_may_end_within_no_transfer_and_uploads_may_be_refused() -> None:
    host = torch.ones(1000)
    with debug.no_transfer():
        x = host.to("xla") * 2
        torch_xla.sync()
        with debug.no_transfer(to_device=True):
            y = torch.ones(3, device="xla") + x[:3]
            with pytest.raises(debug.TransferRefused, match=r"refuses to bring 3.91KB to the device for"):
                host.to("xla")
        host.to("xla")
    assert y.tolist() == [3, 3, 3]


def test_an_operator_on_the_cpu_is_refused_too() -> None:
    x = torch.tensor([[3.0], [1.0], [1.0]]).to("xla")
    with debug.no_transfer(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(debug.TransferRefused, match="run aten::_histogramdd_from_bin_tensors on the CPU"):
            torch.histogramdd(x, (x[:2, 0],))


def test_the_refusal_teaches() -> None:
    loss = torch.rand(3, device="xla").sum() + 2
    with debug.no_transfer(), pytest.raises(debug.TransferRefused) as caught:
        if loss > 2:
            pass
    line = sys._getframe().f_lineno - 2
    assert str(caught.value) == (
        f"no_transfer() refuses to bring a value of 1.00B to the host for {__file__}:{line} in "
        "test_the_refusal_teaches: if loss > 2:\n"
        "The operations recorded so far would have to run first, and the host would wait for them. "
        "Look at values after the step (`xm.add_step_closure`), or keep the decision on the device (`torch.where`)."
    )


def test_the_costs_of_many_lines_are_kept_in_bounded_memory_the_dearest_by_themselves() -> None:
    value = torch.ones((), device="xla")
    for number in range(1100):
        exec(compile(f"{chr(10) * number}value.item()", "generated.py", "exec"), {"value": value})
    dear = torch.ones(700, 700, device="xla")
    (dear @ dear).sum().item()
    costs = debug.sync_costs()
    assert len(costs) <= 1000
    assert sum(cost.reads for cost in costs) == 1101
    # Not the first: a machine that does something else meanwhile makes any line dear.
    assert [cost.forced for cost in costs if cost.line[0] == __file__] == [1]
