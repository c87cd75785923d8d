"""Operations that run when they are called need no tape from the second time on, and give what PyTorch gives."""

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.metrics import events
from torch_xla._engine.step import executor, schedule
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of
from torch_xla.experimental import eager_mode_context
from torch_xla.utils.dlpack import to_dlpack


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    torch_xla.sync()
    schedule.clear_schedules()
    with eager_mode_context(True):
        yield


def uses_a_tape(call: Callable[[], object]) -> bool:
    before = device_at(0).tape
    call()
    return device_at(0).tape is not before


def on_both(function: Callable[[str], object]) -> None:
    """Check that `function` returns the same for `xla` as for the CPU, three times."""
    for _ in range(3):
        torch.testing.assert_close(function("xla"), function("cpu"), check_device=False, rtol=1e-5, atol=1e-6)


def numbers(device: str, *size: int) -> Tensor:
    return (torch.arange(float(torch.Size(size).numel())).reshape(size) / 7 - 1).to(device)


CALLS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "one result": lambda a, b: a + b,
    "a number": lambda a, b: a * 2.5,
    "an operand twice": lambda a, b: a + a,
    "views": lambda a, b: a.t() @ b[:, 1:],
    "views of one storage": lambda a, b: a[0] - a[1],
    "in place": lambda a, b: a.add_(b),
    "in place, by itself": lambda a, b: a.mul_(a),
    "through a view": lambda a, b: a[0].add_(1),
    "through a view, of its own storage": lambda a, b: a[1].mul_(a[2]),
    "through a view of every second": lambda a, b: a[:, ::2].sub_(b[:, 1::2]),
    "through a transposed view": lambda a, b: a.t().add_(b),
    "several results": lambda a, b: torch.topk(a, 2),
    "some results": lambda a, b: torch.native_layer_norm(a, [4], b[0], b[1], 1e-5),
    "a list": lambda a, b: torch._foreach_mul([a, b], 3.0),
    "a list in place": lambda a, b: torch._foreach_add_([a, b], [b + 1, a + 1]),
    "a list of views in place": lambda a, b: torch._foreach_add_([a[0], b[1]], [b[2], a[3]]),
    "views of one storage in place": lambda a, b: torch._foreach_add_([a[0], a[1]], [b[2], b[3]]),
    "another dtype": lambda a, b: a > b,
    "another order in memory": lambda a, b: a.t() + b.t(),
    "a number that decides": lambda a, b: F.softmax(a, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_needs_no_tape_and_gives_the_same(name: str) -> None:
    call = CALLS[name]
    kept: dict[str, list[object]] = {"xla": [], "cpu": []}
    for device, seen in kept.items():
        a, b = numbers(device, 4, 4), numbers(device, 4, 4).flip(0).contiguous()
        alias, version = a.view(-1)[5:], a._version
        for turn in range(3):
            result: list[object] = []
            if device == "xla":
                assert uses_a_tape(lambda result=result, a=a, b=b: result.append(call(a, b))) == (turn == 0)
            else:
                result.append(call(a, b))
            seen += [*(each.cpu().clone() for each in (a, b, alias)), result[0], a._version - version]
    torch.testing.assert_close(kept["xla"], kept["cpu"], check_device=False)


def test_who_kept_a_value_keeps_it() -> None:
    a = numbers("xla", 3, 3)
    for turn in range(3):
        before, copy = a[0] * 1, a.clone()
        a[0].add_(1)
        assert torch.equal(a[0].cpu(), before.cpu() + 1)
        assert torch.equal(copy[0].cpu(), before.cpu()), turn


def test_the_same_view_of_other_memory_is_another_program() -> None:
    def write(device: str) -> list[Tensor]:
        wide, tall = numbers(device, 2, 8), numbers(device, 4, 4)
        for base in (wide.view(-1)[4:8], tall.view(-1)[4:8]):
            base.mul_(2)
        return [wide, tall, wide.view(-1)[4:8] + tall.view(-1)[4:8]]

    on_both(write)


def test_operands_that_are_one_are_told_from_two() -> None:
    a, b = numbers("xla", 5), numbers("xla", 5) * 3
    for x, y in ((a, a), (a, b), (b, b), (b, a)) * 2:
        assert torch.equal((x - y).cpu(), x.cpu() - y.cpu())
        assert torch.equal((x[1:] - y[:4]).cpu(), x.cpu()[1:] - y.cpu()[:4])


def test_numbers_that_change_become_arguments() -> None:
    a, expected = numbers("xla", 4), numbers("cpu", 4)
    for number in (1.5, 2.5, 3.5, 2.5):
        assert torch.equal((a * number).cpu(), expected * number)
    met.clear_all()
    assert torch.equal((a * 7.5).cpu(), expected * 7.5)
    assert met.counter_value("UncachedCompile") is None


def test_only_the_base_of_a_view_is_computed() -> None:
    a = numbers("xla", 3, 3)
    a[0].add_(1)
    ((shortcut,),) = [tuple(schedule.shortcuts.values())]
    assert len(shortcut.program.graph.outputs) == 1


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "in place": lambda a, b: a.add_(b),
    "by itself": lambda a, b: a.add_(a),
    "drawn": lambda a, b: a.uniform_(),
    "through a view": lambda a, b: a[0].add_(1),
    "of a list": lambda a, b: torch._foreach_add_([a, b], 1.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_much_memory_that_nobody_else_holds_is_written_over(name: str) -> None:
    a, b = numbers("xla", 128, 128), numbers("xla", 128, 128)
    for _ in range(4):
        before = value_of(a).buffer
        WRITES[name](a, b)
        assert before.is_deleted()


@pytest.mark.parametrize("name", WRITES)
def test_memory_that_somebody_holds_is_not(name: str) -> None:
    a, b = numbers("xla", 128, 128), numbers("xla", 128, 128)
    for _ in range(3):
        WRITES[name](a, b)  # known, and takes what it writes to
    for keep in (torch.clone, value_of, to_dlpack, lambda a: a.detach().clone()):
        for _ in range(2):
            expected, kept = a.cpu(), keep(a)
            buffer = value_of(a).buffer
            WRITES[name](a, b)
            assert not buffer.is_deleted() and not torch.equal(a.cpu(), expected)
            if isinstance(kept, Tensor):
                assert torch.equal(kept.cpu(), expected)
            del kept
    before = value_of(a).buffer
    WRITES[name](a, b)
    assert before.is_deleted()


def test_random_numbers_are_those_of_recorded_operations() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(5)
        x = torch.ones(20).to("xla")
        generator = torch.Generator("xla").manual_seed(3)
        drawn = [F.dropout(x, 0.5), x.uniform_().clone(), x[:4].normal_().clone(), torch.bernoulli(x.sigmoid())]
        return [each.cpu() for each in (*drawn, x.exponential_(generator=generator))]

    now = [draw() for _ in range(3)]
    with eager_mode_context(False):
        recorded = draw()
    for each in now:
        torch.testing.assert_close(each, recorded, rtol=1e-6, atol=1e-6)


def test_what_waits_is_run_with_the_next_operation() -> None:
    a = numbers("xla", 3)
    a + a
    for _ in range(2):
        constant = torch.full((3,), 2.0, device="xla")
        assert uses_a_tape(lambda: a + a)
        assert constant.tolist() == [2.0] * 3
        assert not uses_a_tape(lambda: a + a)


@pytest.mark.parametrize("size, gives", [(3, False), (128, True)])
def test_a_program_that_fails_changes_nothing(size: int, gives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a = numbers("xla", size, size)
    for _ in range(2):
        a[0].add_(1)
    before, version = a.tolist(), a._version

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "run", fail)
        assert [bool(shortcut.gives) for shortcut in schedule.shortcuts.values()] == [gives]
        with pytest.raises(RuntimeError, match="no memory"):
            a[0].add_(1)
    assert a.tolist() == before and a._version == version
    a[0].add_(1)
    assert a[0].tolist() == pytest.approx([x + 1 for x in before[0]])


def test_a_close_observer_sees_each_operation() -> None:
    a = numbers("xla", 3)
    a + a
    seen: list[events.Evaluation] = []
    listener = lambda event: seen.append(event) if isinstance(event, events.Evaluation) else None  # noqa: E731
    events.listen(listener, closely=True)
    try:
        a + a
    finally:
        events.unlisten(listener)
    assert len(seen) == 1
    assert not uses_a_tape(lambda: a + a)


def test_it_is_counted_as_recorded_operations_are() -> None:
    a = numbers("xla", 3)

    def counted() -> dict[str, int | None]:
        met.clear_all()
        a[2:].add_(a[:1])
        names = ("xla::add", "SyncTensorsToData", "ExecuteComputation", "CachedCompile")
        samples = {name: met.metric_data(name) for name in ("TensorsGraphSize", "EagerOpExecuteTime")}
        counts = {name: met.counter_value(name) for name in names}
        return {**counts, **{name: data[0] if data else None for name, data in samples.items()}}

    counted()
    schedule.shortcuts.clear()
    by_tape = counted()
    assert by_tape["xla::add"] == 1 and counted() == by_tape


def test_values_are_counted_too() -> None:
    a = numbers("xla", 3)
    for _ in range(2):
        a + a
    gc.collect()  # what earlier tests left would go meanwhile
    before = met.counter_value("DestroyXlaTensor")
    for _ in range(10):
        a + a
    after = met.counter_value("DestroyXlaTensor")
    assert after - (before or 0) == 10


def test_the_lines_of_the_results_are_known() -> None:
    a = numbers("xla", 3)
    for _ in range(2):
        b = a + a
    assert value_of(b).line[0] == __file__


def test_another_dtype_mode_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.tensor([1 + 2**-10]).to("xla")
    for _ in range(2):
        assert (a * 1.0).item() == 1 + 2**-10
    with monkeypatch.context() as patch:
        patch.setenv("XLA_USE_BF16", "1")
        for _ in range(2):
            assert (a * 1.0).item() == 1
    assert (a * 1.0).item() == 1 + 2**-10


def test_forgetting_the_programs_forgets_this_too() -> None:
    a = numbers("xla", 3)
    a + a
    schedule.clear_schedules()
    assert uses_a_tape(lambda: a + a)


def test_operands_of_two_devices_are_refused() -> None:
    a = numbers("xla", 3)
    a.add_(a.clone())
    with pytest.raises(RuntimeError, match="on the same device"):
        a.add_(torch.ones(3))


def test_a_reader_in_another_thread_never_finds_memory_that_was_given_away() -> None:
    a = torch.zeros(128, 128).to("xla")
    seen: list[float] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                seen.append((a * 1.0)[0, 0].item())
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(500):
        a.add_(1)
    done.set()
    reader.join()
    assert not failed
    assert seen == sorted(seen) and a[0, 0].item() == 500


def test_threads_do_not_see_each_others_operations() -> None:
    wrong: list[object] = []

    def work(offset: float) -> None:
        a = torch.zeros(4, 4).to("xla") + offset
        for turn in range(50):
            a[turn % 4].add_(1)
            if turn % 10 == 0:
                torch.ones(2, device="xla")
        expected = [[offset + len(range(row, 50, 4))] * 4 for row in range(4)]
        if a.tolist() != expected:
            wrong.append((offset, a.tolist()))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_next_place_of_a_view_compiles_nothing() -> None:
    def walk(device: str) -> Tensor:
        x = numbers(device, 9, 4)
        for i in range(8):
            x[i] += 2 * x[i + 1]
            x[i, 1] = 3.5
            x[i].mul_(x[8]).add_(x[i + 1], alpha=0.5)
        return x

    on_both(walk)
    compiled = met.counter_value("UncachedCompile")
    x = numbers("xla", 9, 4)
    for i in (7, 2, 5):
        x[i] += 2 * x[i - 2]
    assert met.counter_value("UncachedCompile") == compiled
