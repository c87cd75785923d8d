"""For any two programs, the difference is described: never an empty text, and never an error."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.debug as debug
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.logs import switches
from torch_xla._engine.diagnostics.recompiles import causes
from torch_xla._engine.diagnostics.recompiles.differences import Kind, Known, differences, is_part, similarity
from torch_xla._engine.metrics import events
from torch_xla._engine.metrics.events import Compilation


class _Seen(Exception):
    """Raised instead of a compilation, which would take long and is not needed here."""


@contextmanager
def instead_of_compiling() -> Iterator[list[Compilation]]:
    found: list[Compilation] = []

    def look(event: events.Event) -> None:
        if isinstance(event, Compilation):
            found.append(event)
            raise _Seen

    events.guard(look)
    try:
        yield found
    finally:
        events.unguard(look)


def unary(x: Tensor, chance: random.Random) -> Tensor:
    return chance.choice([torch.sin, torch.exp, torch.neg, lambda y: y * chance.choice([2, 3.5, True]), torch.clone])(x)


def view(x: Tensor, chance: random.Random) -> Tensor:
    if not x.dim() or not x.numel():
        return x.reshape(-1)
    return chance.choice([x.t() if x.dim() == 2 else x[0], x.flatten(), x[:1], x.unsqueeze(0), x.expand(2, *x.shape)])


def write(x: Tensor, chance: random.Random) -> Tensor:
    x = x.clone()
    place = x[0] if x.dim() and x.numel() else x
    if x.dtype is torch.bool:
        place.zero_()
    else:
        chance.choice([place.zero_, lambda: place.add_(chance.randint(0, 3)), lambda: place.fill_(chance.random())])()
    return x


def made(x: Tensor, chance: random.Random) -> Tensor:
    size = chance.randint(1, 3)
    return chance.choice([torch.ones_like(x), torch.zeros(size, device="xla"), torch.arange(size, device="xla")])


def several(x: Tensor, chance: random.Random) -> Tensor:
    return chance.choice([lambda: torch.stack([x, x]), lambda: torch._foreach_add([x, x], 1)[1], lambda: x.sum()])()


def drawn(x: Tensor, chance: random.Random) -> Tensor:
    return torch.rand(chance.randint(1, 2), device="xla")


def converted(x: Tensor, chance: random.Random) -> Tensor:
    return x.to(chance.choice([torch.float32, torch.float16, torch.int64, torch.bool]))


PIECES = (unary, unary, view, write, made, several, drawn, converted)


def a_program(seed: int) -> None:
    """Records some operations, holds some of the results, and looks at one or ends the step."""
    chance = random.Random(seed)
    device, dtype = torch.device("xla"), chance.choice([torch.float32, torch.float32, torch.int32])
    held = [torch.ones(chance.choice([(), (2,), (3,), (2, 3), (0,)]), dtype=dtype).to(device)]
    held.append(held[0].cpu().t().to(device) if held[0].dim() == 2 else held[0])
    for _ in range(chance.randint(1, 7)):
        result = chance.choice(PIECES)(chance.choice(held), chance)
        held.append(result)
        if chance.random() < 0.4:
            held.pop(chance.randrange(len(held) - 1))
    if chance.random() < 0.3:
        held[-1].cpu()
    else:
        torch_xla.sync()


@pytest.fixture(scope="module")
def programs() -> list[Compilation]:
    torch_xla.sync()
    compiled: list[Compilation] = []
    for seed in range(45):
        with instead_of_compiling() as found:
            try:
                a_program(seed)
            except _Seen:
                compiled += found[:1]
        torch_xla.sync()  # no reference to the refused operations remains
    return compiled


def test_two_programs_always_have_a_difference_that_is_told(programs: list[Compilation]) -> None:
    known = [Known.of(compilation) for compilation in programs]
    assert len(known) > 20 and {each.cause for each in known} == {events.Cause.READ, events.Cause.SYNC}
    reads = [None, *(each for each in known if each.cause is events.Cause.READ)]
    kinds = set()
    for number, (old, new) in enumerate(product(known, known)):
        found = differences(old, new, reads[number % len(reads)])
        assert found and all(each.text.strip() and "\n" not in each.text for each in found)
        assert 0 <= similarity(old, new) <= 1 and is_part(new, new)
        kinds.update(each.kind for each in found)
    assert kinds >= {Kind.INPUT, Kind.OPERATIONS, Kind.ARGUMENT, Kind.CUT, Kind.AGAIN}


def test_every_program_is_explained_after_any_others(
    programs: list[Compilation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "_known", type(causes._known)(maxlen=7))
    debug.clear_history()
    order = [index for seed in range(3) for index in random.Random(seed).sample(range(len(programs)), len(programs))]
    for index in order:
        causes.note(programs[index])
    told = debug.compilations()
    assert len(told) == len(order)
    assert all(str(each).startswith(("compiled (", "recompiled (")) for each in told)
    assert debug.explain_recompiles().startswith(f"{len(order)} compilations, 0.00 s\n")
    debug.clear_history()


def test_no_tool_that_listens_fails_on_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = ("PT_XLA_DEBUG_FILE", "XLA_SAVE_TENSORS_FILE", "XLA_FNTRACKER_FILE", "XLA_METRICS_FILE")
    torch_xla.sync()
    with monkeypatch.context() as patch:
        for name in files:
            patch.setenv(name, str(tmp_path / name))
        for name in ("PT_XLA_DEBUG", "XLA_IR_DEBUG", "XLA_HLO_DEBUG"):
            patch.setenv(name, "1")
        switches.apply_settings()
        for seed in range(8):
            a_program(seed)
            torch_xla.sync()
    switches.apply_settings()
    assert met.counter_value("ListenerFailed") is None
    assert len(list(tmp_path.iterdir())) == len(files)
    assert debug.report().startswith("torch_xla report\n")
