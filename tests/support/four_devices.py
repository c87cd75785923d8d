"""A program for four virtual CPU devices; see tests/engine/dispatch/test_ordinals.py. Each function is one part."""

import copy
import io
import random
import threading
from collections.abc import Callable

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from tests.interrupts.check import interrupted
from tests.interrupts.programs import AcrossOrdinals
from tests.support import parts
from torch_xla._engine.compile import oversized_values
from torch_xla._engine.step import in_flight
from torch_xla._engine.tensor.device import device_at

FIRST, SECOND = torch.device("xla:0"), torch.device("xla:1")


def _refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError("not refused")


def backward_on_the_host_first_does_not_start_the_client() -> None:
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert not torch.xla.is_initialized()  # type: ignore[attr-defined]


def there_are_four() -> None:
    assert torch_xla.device_count() == torch.accelerator.device_count() == 4
    assert torch_xla.devices() == [torch.device("xla", i) for i in range(4)]


def tensors_are_made_where_asked() -> None:
    x = torch.ones(2, 3, device=SECOND)
    assert (x.device, x.stride(), x.untyped_storage().nbytes()) == (SECOND, (3, 1), 24)
    assert torch.tensor([1, 2], device="xla:3").device.index == 3
    assert torch.zeros(0, 3, device=SECOND).stride() == (3, 1)
    assert torch.tensor(2.0, device=SECOND).item() == 2
    assert "xla:1" in repr(x)


def results_stay_where_their_operands_are() -> None:
    x = torch.arange(6.0, device=SECOND).view(2, 3)
    x.t()[1].add_(10)
    made = (
        x + 1, x @ x.t(), x.sum(), x[0], torch.zeros_like(x), torch.rand_like(x), x.new_zeros(2), x.new_tensor([1]),
        x.clone(), x.double(), x.contiguous(), x.new_empty_strided((2, 2), (1, 2)), torch.cat([x, x]), x.detach(),
    )  # fmt: skip
    assert all(t.device == SECOND for t in made)
    assert x.tolist() == [[0, 11, 2], [3, 14, 5]]


def every_dtype_exists_on_every_ordinal() -> None:
    for dtype in (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex128):
        assert torch.ones(2, dtype=dtype, device=SECOND).cpu().equal(torch.ones(2, dtype=dtype))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64):
        host = torch.ones(2).to(dtype)
        assert host.to(SECOND).cpu().view(torch.uint8).equal(host.view(torch.uint8))


def tensors_move_between_ordinals() -> None:
    x = torch.arange(6.0, device=FIRST).view(2, 3)
    y = x.t().to(SECOND)
    assert y.device == SECOND and y.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert y.to("xla:2").to(FIRST).tolist() == y.tolist()
    assert x.to(SECOND, torch.float64).dtype is torch.float64
    z = torch.zeros(3, device=SECOND)
    z.copy_(torch.arange(3.0, device=FIRST))
    z[1:].copy_(torch.ones(2, device="xla:2"))
    assert z.tolist() == [0, 1, 1]


def memory_can_be_set_and_resized_on_every_ordinal() -> None:
    x = torch.arange(6.0, device=SECOND)
    y = torch.empty(0, device=SECOND).set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    y.mul_(10)
    assert x.tolist() == [0, 10, 20, 30, 40, 5]
    assert torch.ones(3, device=SECOND).resize_(5)[:3].tolist() == [1, 1, 1]
    assert torch.ones(2, 3, device=SECOND).t_().stride() == (1, 3)
    assert torch.add(torch.ones(2, device=SECOND), 1, out=torch.empty(0, device=SECOND)).tolist() == [2, 2]


def ordinals_do_not_mix() -> None:
    a, b = torch.ones(2, 2, device=FIRST), torch.ones(2, 2, device=SECOND)
    same = "to be on the same device, but found at least two devices, xla:0 and xla:1"
    for call in (
        lambda: a + b,
        lambda: a.add_(b),
        lambda: a @ b,
        lambda: torch.cat([a, b]),
        lambda: torch.where(a > 0, a, b),
        lambda: nn.functional.linear(a, b),
        lambda: torch._foreach_add([a], [b]),
        lambda: a + b.t()[0],
        lambda: a + b.sum(),
    ):
        _refused(call, same)
    b.cpu()
    _refused(lambda: a + b, same)
    _refused(lambda: torch.add(a, 1, out=b), "device")


def ordinals_that_do_not_exist_are_refused() -> None:
    _refused(lambda: torch.ones(2, device="xla:4"), "xla:4 does not exist")
    _refused(lambda: torch.xla.set_device(4), "xla:4 does not exist")  # type: ignore[attr-defined]


def gradients_are_computed_on_every_ordinal() -> None:
    for index in range(4):
        x = torch.arange(3.0, device=f"xla:{index}").requires_grad_()
        ((x * 2) ** 2).sum().backward()
        assert x.grad is not None and x.grad.device.index == index
        assert x.grad.tolist() == [0, 8, 16]


def gradients_cross_between_ordinals_and_the_host() -> None:
    x = torch.arange(3.0, device=FIRST).requires_grad_()
    h = torch.arange(3.0).requires_grad_()
    (((x * 2).to(SECOND) * h.to(SECOND)).cpu() * 3).sum().backward()
    assert x.grad is not None and x.grad.device == FIRST and x.grad.tolist() == [0, 6, 12]
    assert h.grad is not None and h.grad.device.type == "cpu" and h.grad.tolist() == [0, 6, 12]


def an_exception_crosses_a_backward_pass_over_ordinals() -> None:
    x = torch.ones(2, device=FIRST, requires_grad=True)
    y = x.to(SECOND) * 2
    y.register_hook(lambda gradient: 1 / 0)
    for _ in range(2):
        try:
            (y.to("xla:2") * y.to("cpu").to("xla:2")).sum().backward()
        except ZeroDivisionError:
            y = x.to(SECOND) * 2
        else:
            assert x.grad is not None and x.grad.tolist() == [8, 8]


def interrupts_lose_nothing_on_any_ordinal() -> None:
    found = interrupted(AcrossOrdinals, 30, random.Random(0))
    assert not found.wrong and not found.lost, str(found)


def every_ordinal_has_a_stream() -> None:
    first, second = torch.Stream(device=FIRST), torch.Stream(device=SECOND)
    assert (first.device, second.device) == (FIRST, SECOND) and first != second
    assert torch.accelerator.current_stream(SECOND) == second
    assert first == torch.accelerator.current_stream() and first.query() and second.query()


def modules_train_on_every_ordinal() -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    losses = []
    for device in ("cpu", "xla:1", "xla:3"):
        model = copy.deepcopy(host)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model.to(device)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 1, 12).view(4, 3).to(device)).pow(2).mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        losses.append(loss.item())
        assert all(p.device == torch.device(device) for p in model.parameters())
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], losses[0])


def the_current_ordinal_is_what_a_bare_name_means() -> None:
    xla = torch.xla  # type: ignore[attr-defined]
    with xla.device(1):
        assert torch.ones(2, device="xla").device == SECOND and torch.ones(2).to("xla").device == SECOND
        assert torch_xla.device() == SECOND
        with xla.device(2):
            assert xla.current_device() == 2
    assert torch.ones(2, device="xla").device == FIRST
    torch.accelerator.set_device_index(3)
    assert torch.accelerator.current_device_index() == xla.current_device() == 3
    xla.set_device(0)
    with torch.device("xla:1"):
        assert torch.ones(2).device == SECOND and nn.Linear(2, 2).weight.device == SECOND
    torch.accelerator.synchronize()


def every_thread_has_a_current_ordinal_of_its_own() -> None:
    found: dict[int, int | None] = {}

    def work(index: int) -> None:
        torch.xla.set_device(index)  # type: ignore[attr-defined]
        x = torch.ones(3, device="xla", requires_grad=True)
        (x * index).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [index] * 3
        found[index] = x.device.index

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: i for i in range(4)}
    assert torch.xla.current_device() == 0  # type: ignore[attr-defined]


def every_ordinal_has_random_numbers_of_its_own() -> None:
    torch.manual_seed(3)
    first, second = torch.rand(3, device=FIRST), torch.rand(3, device=SECOND)
    torch.manual_seed(3)
    assert torch.rand(3, device=SECOND).cpu().equal(second.cpu())
    assert torch.rand(3, device=FIRST).cpu().equal(first.cpu())
    assert not first.cpu().equal(second.cpu())


def tensors_are_saved_with_their_ordinal() -> None:
    file = io.BytesIO()
    torch.save(torch.arange(3.0, device=SECOND), file)
    for target, index in ((None, 1), ("xla:2", 2), ({"xla:1": "xla:3"}, 3)):
        file.seek(0)
        loaded = torch.load(file, map_location=target)
        assert loaded.device.index == index and loaded.tolist() == [0, 1, 2]
    assert copy.deepcopy(torch.ones(2, device=SECOND)).device == SECOND


def a_sync_of_one_ordinal_leaves_the_others_alone() -> None:
    x, y = torch.ones(2, device=FIRST) + 1, torch.ones(2, device=SECOND) + 2
    torch_xla.sync()
    torch.xla.synchronize(1)  # type: ignore[attr-defined]
    assert x.tolist() == [2, 2] and y.tolist() == [3, 3]


def a_step_without_room_is_undone_on_its_ordinal_alone() -> None:
    memory = oversized_values.host_memory
    oversized_values.host_memory = lambda: 1_000_000
    x, y = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
    torch_xla.sync()
    total = (torch.arange(1 << 20, device=FIRST) * x[0]).cumsum(0).sum()
    x += total
    y += 2
    _refused(lambda: total.item(), "There is no room for a value")
    oversized_values.host_memory = memory
    assert x.tolist() == [1, 1, 1] and y.tolist() == [3, 3, 3]


def _busy(device: torch.device) -> torch.Tensor:
    """A value whose program has just been started, and runs for a while."""
    x = torch.full((600, 600), 1e-3, device=device)
    for _ in range(60):
        x = torch.tanh(x @ x)
    torch.xla.set_device(device)  # type: ignore[attr-defined]
    torch_xla.sync()
    torch.xla.set_device(0)  # type: ignore[attr-defined]
    return x


def _is_ready(tensor: torch.Tensor) -> bool:
    return bool(tensor.untyped_storage().value.buffer.is_ready())  # type: ignore[attr-defined]


def waiting_for_all_waits_for_each_however_much_others_were_given() -> None:
    busy = _busy(SECOND)
    x = torch.ones(2, device=FIRST)
    for _ in range(40):
        x = x + 1
        torch_xla.sync()
    xm.wait_device_ops()
    assert _is_ready(busy) and _is_ready(x)


def waiting_names_the_devices() -> None:
    others, busy = _busy(torch.device("xla:2")), _busy(SECOND)
    xm.wait_device_ops(["xla:1"])
    assert _is_ready(busy)
    x = torch.ones(2, device=FIRST) + 1
    torch_xla.sync()
    xm.wait_device_ops(["xla:0", "xla:2"])
    assert _is_ready(others) and _is_ready(x)
    _refused(lambda: xm.wait_device_ops(["xla:7"]), "xla:7 does not exist")


def programs_in_flight_belong_to_their_target() -> None:
    _busy(SECOND)
    torch_xla.sync(wait=True)  # of the first
    flight = in_flight.by_target[device_at(1).target]
    assert flight.started
    xm.wait_device_ops([SECOND])
    assert not flight.started


if __name__ == "__main__":
    parts.run_all(globals())
