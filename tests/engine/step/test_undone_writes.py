"""After a step that has no room, a training goes on as if the step had not been: tensors hold what they held before."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla._engine.compile import oversized_values

ROOM = 4_000_000  # bytes that are 4 times the host's memory, as the tests have it
SMALL, LARGE = 8, 1 << 20  # batches

Optimizers = dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized_values, "host_memory", lambda: ROOM // 4)


OPTIMIZERS: Optimizers = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "adamw one by one": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, foreach=False),
    "adam with amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.05, amsgrad=True),
    "sgd with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.05),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


class Training:
    """A network with statistics that each step moves."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to("xla")
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def step(self, rows: int) -> None:
        x = torch.arange(rows, device="xla")[:, None] * torch.tensor([0.5, -1, 2, 0.25], device="xla") % 3
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        torch_xla.sync()

    def state(self) -> list[torch.Tensor]:
        found = [*self.model.state_dict().values()]
        for each in self.optimizer.state_dict()["state"].values():
            found += [value for value in each.values() if isinstance(value, torch.Tensor)]
        return [value.cpu() for value in found]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fails", [(1,), (0,), (0, 2, 3)], ids=str)  # in the first step the optimizer makes its state
def test_a_step_without_room_has_not_been(optimizer: str, fails: tuple[int, ...]) -> None:
    plain, other = Training(optimizer), Training(optimizer)
    for index in range(4):
        if index in fails:
            with pytest.raises(torch.OutOfMemoryError, match="what the step wrote to tensors is undone"):
                other.step(LARGE)
            for each in other.optimizer.state.values():
                if "step" in each:
                    each["step"] -= 1  # Adam counts its steps on the host, as on CUDA: this one too
        other.step(SMALL)
        plain.step(SMALL)
    for ours, expected in zip(other.state(), plain.state(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


Body = Callable[[torch.Tensor], torch.Tensor]

WAYS: dict[str, Callable[[Body], Body]] = {
    "region": torch_xla.compile,
    "replay": lambda body: torch_xla.compile(body, replay=True),
    "openxla": lambda body: torch.compile(body, backend="openxla"),
}


@pytest.mark.parametrize("way", WAYS)
def test_so_is_a_compiled_one(way: str) -> None:
    def trained(fails: tuple[int, ...]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        called = WAYS[way](model) if way == "openxla" else model

        def body(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = called(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        whole = body if way == "openxla" else WAYS[way](body)

        def step(rows: int) -> None:
            whole(torch.arange(rows, device="xla")[:, None] * torch.tensor([0.5, -1, 2, 0.25], device="xla") % 3)
            torch_xla.sync()

        for index in range(7):
            if index in fails:
                with pytest.raises(torch.OutOfMemoryError):
                    step(LARGE)
            step(SMALL)
        return [value.cpu() for value in model.state_dict().values()]

    for ours, expected in zip(trained((0, 1, 5)), trained(()), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def large(scale: torch.Tensor) -> torch.Tensor:
    return (torch.arange(LARGE, device="xla") * scale).cumsum(0).sum()


def test_what_was_recorded_before_stays_and_what_comes_after_is_undone() -> None:
    before, after, whole = (torch.ones(3, device="xla") for _ in range(3))
    part = whole[:2]
    torch_xla.sync()
    before += 1
    made = torch.zeros(2, device="xla")
    total = large(before[0])
    after += 5
    part.mul_(total)
    made += 7
    before *= 3
    kept = after * 2
    with pytest.raises(torch.OutOfMemoryError):
        torch_xla.sync()
    assert before.tolist() == [2, 2, 2] and after.tolist() == [1, 1, 1] and whole.tolist() == [1, 1, 1]
    assert made.tolist() == [0, 0]
    assert kept.tolist() == [12, 12, 12]  # no write: it describes what it was made of
    with pytest.raises(torch.OutOfMemoryError):
        total.item()
    del total
    after += 1
    torch_xla.sync()
    assert after.tolist() == [2, 2, 2]


def test_a_read_without_room_undoes_the_writes_too() -> None:
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    total = large(x[0])
    x += total
    x += 1
    with pytest.raises(torch.OutOfMemoryError):
        x.tolist()
    assert x.tolist() == [1, 1, 1]


def test_a_step_of_which_a_read_has_run_a_part_is_undone_as_far_as_it_was_not_run() -> None:
    x, y = torch.ones(3, device="xla"), torch.ones(3, device="xla")
    torch_xla.sync()
    x += 1
    assert x.tolist() == [2, 2, 2]
    x += 2
    total = large(y[0])
    x += total
    y += total
    with pytest.raises(torch.OutOfMemoryError):
        torch_xla.sync()
    assert x.tolist() == [4, 4, 4] and y.tolist() == [1, 1, 1]


def test_what_other_threads_wrote_is_theirs() -> None:
    x, y = torch.ones(3, device="xla"), torch.ones(3, device="xla")
    torch_xla.sync()
    total = large(x[0])
    x += 1

    def write() -> None:
        y.add_(2)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    with pytest.raises(torch.OutOfMemoryError):
        total.item()
    assert x.tolist() == [1, 1, 1] and y.tolist() == [3, 3, 3]


def test_frameworks_that_choose_a_smaller_batch_know_the_error() -> None:
    """Accelerate, and so Transformers, know it by its class, its number of arguments, and these words."""
    with pytest.raises(RuntimeError) as caught:
        large(torch.ones((), device="xla")).item()
    assert len(caught.value.args) == 1 and " out of memory." in caught.value.args[0]
