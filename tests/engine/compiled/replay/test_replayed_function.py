"""A function is recorded until three calls did the same, and says why as long as it is."""

import abc
import copy
import gc
import os
import pickle
import sys
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compiled.region import Region
from torch_xla._engine.compiled.replay import replayed_function
from torch_xla._engine.compiled.replay.replayed_function import (
    EARNED_AFTER,
    ENOUGH,
    MOST_KINDS,
    Replayed,
    ReplayedByItself,
)


def tensor(*numbers: float) -> torch.Tensor:
    x = torch.tensor(numbers).to("xla")
    torch_xla.sync()
    return x


def of(function: Callable[..., Any]) -> Replayed:
    return Replayed(function, Region("", False, None))


def replays() -> int:
    return met.counter_value("ReplayedStep") or 0


def test_three_calls_in_a_row_make_a_replay() -> None:
    step, x = of(lambda x: x * 2), tensor(1.0, 2.0)
    assert step.why_recorded == "it was not called yet" and not step.is_replayed
    seen = []
    for number in range(6):
        assert step(x + number).tolist() == [2.0 + 2 * number, 4.0 + 2 * number]
        seen.append((step.is_replayed, step.why_recorded))
    assert [each for each, _ in seen] == [number + 1 >= ENOUGH for number in range(6)]
    assert seen[0][1].startswith("a replay needs 3 calls in a row that do the same, and has seen 1")
    assert seen[ENOUGH - 1][1].startswith("it was the last of 3 calls")
    assert seen[ENOUGH:] == [(True, "")] * (6 - ENOUGH) and replays() == 6 - ENOUGH


def test_it_looks_like_the_function_and_binds_as_one() -> None:
    class Model:
        @of
        def step(self, x: torch.Tensor) -> torch.Tensor:
            """Doubles."""
            return x * 2

    assert Model.step.__name__ == "step" and Model.step.__doc__ == "Doubles."
    model, x = Model(), tensor(1.0)
    assert [model.step(x).item() for _ in range(5)] == [2.0] * 5 and replays() == 2


def test_another_kind_of_arguments_is_recorded_for_itself() -> None:
    step = of(lambda x, n: x * n)
    for _ in range(2):
        for size in (2, 3):
            for _ in range(4):
                assert step(torch.ones(size).to("xla"), size).tolist() == [size] * size
    assert replays() == 2 * 1 + 2 * 4


def test_what_changes_ends_the_replay_and_is_told_once() -> None:
    state = {"scale": 2.0}
    step, x = of(lambda x: x * state["scale"]), tensor(1.0)
    for _ in range(4):
        step(x)
    state["scale"] = 3.0
    with pytest.warns(UserWarning, match=r"is recorded this time: it sees .*|is recorded this time: .*scale"):
        assert step(x).item() == 3.0
    assert "scale" in step.why_recorded and not step.is_replayed
    for _ in range(4):
        assert step(x).item() == 3.0
    assert step.is_replayed


def test_what_never_does_the_same_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_function, "PATIENCE", 3)
    step, x = of(lambda x: x * x.sum().item()), tensor(2.0)
    with pytest.warns(UserWarning, match="is recorded, not replayed: it reads a value on the host"):
        for _ in range(4):
            assert step(x).item() == 4.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(x).item() == 4.0  # once is enough
    assert step.why_recorded.startswith("it reads a value on the host")


def test_arguments_that_can_never_be_replayed_are_told_at_once() -> None:
    step = of(lambda x: x * 2)
    with pytest.warns(UserWarning, match="an argument is a tensor on the CPU: move it to the device before the call"):
        assert step(torch.ones(1)).item() == 2.0
    assert step.why_recorded.startswith("an argument is a tensor on the CPU")


def test_numbers_that_change_from_call_to_call_must_be_tensors() -> None:
    step, x = of(lambda x, n: x * n), tensor(1.0)
    for number in range(MOST_KINDS):
        step(x, number)
    with pytest.warns(
        UserWarning, match=f"with other arguments than the first {MOST_KINDS} kinds: Python numbers that"
    ):
        assert step(x, -1).item() == -1.0
    assert "must be tensors" in step.why_recorded


def test_inside_a_region_it_is_a_part_of_that() -> None:
    step, x = of(lambda x: x * 2), tensor(1.0)
    outer = torch_xla.compile(lambda: step(x) + 1)
    for _ in range(5):
        assert outer().item() == 3.0
    assert replays() == 0 and step.why_recorded == "it was called in another compiled function, and is a part of that"


def test_an_error_leaves_it_as_it_was() -> None:
    fails = [True]

    def function(x: torch.Tensor) -> torch.Tensor:
        if fails[0]:
            raise ZeroDivisionError("mine")
        return x * 2

    step, x = of(function), tensor(1.0)
    with pytest.raises(ZeroDivisionError, match="mine"):
        step(x)
    fails[0] = False
    assert [step(x).item() for _ in range(6)] == [2.0] * 6 and step.is_replayed


def test_a_function_that_reads_the_environment_is_replayed_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FACTOR_OF_A_TEST", "2")

    @torch_xla.compile(replay=True, name="reads the environment")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * int(os.environ.get("A_FACTOR_OF_A_TEST", "1")) + len(os.getenv("NOT_SET_IN_A_TEST", ""))

    x = torch.ones(3, device="xla")
    assert [scaled(x)[0].item() for _ in range(5)] == [2.0] * 5
    assert scaled.is_replayed and not scaled.why_recorded
    monkeypatch.setenv("A_FACTOR_OF_A_TEST", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [scaled(x)[0].item() for _ in range(5)] == [3.0] * 5


def by_itself(function: Callable[..., Any]) -> ReplayedByItself:
    return ReplayedByItself(function, Region("", False, None))


def trainer(device: str, compiled: Callable[..., Any]) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return compiled(step), list(model.parameters())


def test_a_function_is_replayed_by_itself_after_some_calls_and_warns_nobody() -> None:
    (ours, weights), (theirs, expected) = trainer("xla", by_itself), trainer("cpu", lambda step: step)
    x, told = torch.randn(4, 3), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(EARNED_AFTER + 8):
            loss = ours(x.to("xla"))
            torch.testing.assert_close(loss.cpu(), theirs(x))
            assert loss.requires_grad and not loss.is_leaf
            told.append(ours.why_recorded)
    torch.testing.assert_close([each.cpu() for each in weights], expected)
    assert told[0] == told[EARNED_AFTER - 1] == f"it is recorded {EARNED_AFTER} times first"
    assert told[-4:] == [""] * 4 and replays() == told.count("")


def test_what_changes_too_often_is_recorded_without_a_word() -> None:
    counts: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        counts.append(len(counts))
        return x + 1

    step, x = by_itself(counting), tensor(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(EARNED_AFTER + 15):
            assert step(x).item() == 2
    assert len(counts) == EARNED_AFTER + 15 and not replays()
    assert step.why_recorded.startswith("it changes counts: ")


def test_objects_that_are_arguments_are_not_kept() -> None:
    step, models, x = by_itself(lambda model, x: model(x).detach()), [], tensor(1.0)
    for _ in range(3):
        model = torch.nn.Linear(1, 1).to("xla")
        models.append(weakref.ref(model))
        for _ in range(EARNED_AFTER):
            step(model, x)
        assert step.why_recorded.startswith(("an argument is an object", "it is recorded"))
        del model
    gc.collect()
    assert not any(model() for model in models)


@pytest.mark.parametrize("changes", [False, True], ids=["replayed", "given up"])
def test_what_is_deleted_in_its_module_is_let_go_of(changes: bool) -> None:
    namespace: dict[str, Any] = {"torch": torch, "changes": changes}
    source = """
model = torch.nn.Linear(2, 2).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = []

def step(x):
    if changes:
        seen.append(1)
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    exec(compile(source, __file__, "exec"), namespace)
    step, x = by_itself(namespace["step"]), tensor(1.0, 2.0)
    for _ in range(EARNED_AFTER + 20):
        step(x)
    assert step.is_replayed is not changes
    weight = weakref.ref(namespace["model"].weight)
    del namespace["model"], namespace["optimizer"]
    gc.collect()
    gc.collect()  # objects that the first call has dropped may be in cycles
    assert weight() is None and not step.is_replayed


def test_shapes_that_take_turns_are_replayed_by_itself() -> None:
    step, batches = by_itself(lambda x: x * 2), [tensor(1.0), tensor(1.0, 2.0), tensor(1.0, 2.0, 3.0)]
    for index in range(EARNED_AFTER + 18):
        assert step(batches[index % 3])[-1].item() == 2 * (index % 3 + 1)
    assert not step.why_recorded and replays() >= 3


@pytest.mark.parametrize("looks", [sys.settrace, sys.setprofile], ids=["settrace", "setprofile"])
def test_who_looks_at_what_is_called_sees_each_call(looks: Callable[[Any], None]) -> None:
    step, x = by_itself(lambda x: x * 2), tensor(1.0)
    for _ in range(EARNED_AFTER + 5):
        step(x)
    assert replays()
    before = replays()
    looks(lambda *_: None)
    try:
        assert step(x).item() == 2
    finally:
        looks(None)
    assert step.why_recorded == "a debugger or profiler looks at what is called" and replays() == before
    assert step(x).item() == 2 and replays() == before + 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the interpreter tells nobody of its debuggers")
def test_a_debugger_that_traces_nothing_sees_each_call() -> None:
    step, x, monitoring = by_itself(lambda x: x * 2), tensor(1.0), sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    monitoring.use_tool_id(monitoring.DEBUGGER_ID, "a debugger")
    try:
        for _ in range(EARNED_AFTER + 5):
            assert step(x).item() == 2
    finally:
        monitoring.free_tool_id(monitoring.DEBUGGER_ID)
    assert not replays() and "debugger" in step.why_recorded


def test_nobody_has_to_wait_for_what_replays_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    step, x = by_itself(lambda x: x * 2), tensor(1.0)
    monkeypatch.setattr(replayed_function.identity, "process_count", lambda: 2)
    for _ in range(EARNED_AFTER + 5):
        step(x)
    assert not replays() and step.why_recorded == "there are other processes"


def test_nothing_is_compiled_for_what_replays_by_itself() -> None:
    def weighted(x: torch.Tensor) -> torch.Tensor:
        # When recorded, the result may take the memory of the argument. No other test has compiled these operations.
        return x * torch.tensor([1.0, 2.0, 3.0]).to("xla") - x / 4

    asked, step, x = of(weighted), by_itself(weighted), tensor(4.0, 8.0, 12.0)
    for _ in range(EARNED_AFTER + 6):
        assert asked(x).tolist() == step(x).tolist() == [3, 14, 33]
    assert asked.is_replayed and not step.is_replayed
    assert step.why_recorded.startswith("its replay would be another program")


@by_itself
def found_by_name(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_it_is_pickled_and_copied_as_a_function_is() -> None:
    assert pickle.loads(pickle.dumps(found_by_name)) is found_by_name
    assert copy.copy(found_by_name) is copy.deepcopy(found_by_name) is found_by_name


def test_a_result_that_was_differentiated_requires_a_gradient_and_has_none_left() -> None:
    step, _ = trainer("xla", of)
    x = torch.ones(4, 3).to("xla")
    for number in range(6):
        loss = step(x)
        assert loss.requires_grad and loss.grad_fn is not None and bool(number < ENOUGH) == bool(step.why_recorded)
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            loss.backward()


class Plain:
    """A class that the test changes."""


class Base(abc.ABC):  # noqa: B024
    """One that others may be registered with."""


class Near:
    factor = 2.0


class Far:
    factor = 5.0


class Between(Near):
    pass


class Heir(Between):
    pass


FACTORS: Any = defaultdict(lambda: 2.0)
RATE = 2.0


def by_truth(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if PLAIN else x * 3


def by_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if hasattr(PLAIN, "later") else x * 3


def by_registration(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if isinstance(PLAIN, Base) else x * 3


def by_inheritance(x: torch.Tensor) -> torch.Tensor:
    return x * HEIR.factor


def by_factory(x: torch.Tensor) -> torch.Tensor:
    return x * FACTORS.default_factory()  # type: ignore[no-any-return]


def by_globals(x: torch.Tensor) -> torch.Tensor:
    return x * by_globals.__globals__["RATE"]  # type: ignore[no-any-return]


def by_autocast(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.is_autocast_enabled("cpu") else 3) * (5 if torch.is_autocast_enabled("cuda") else 7)


PLAIN, HEIR = Plain(), Heir()

CHANGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], Any], Callable[[], Any]]] = {
    "truth": (by_truth, lambda: setattr(Plain, "__bool__", lambda _: False), lambda: delattr(Plain, "__bool__")),
    "attributes": (
        by_attribute,
        lambda: setattr(Plain, "__getattr__", lambda *_: 1),
        lambda: delattr(Plain, "__getattr__"),
    ),
    "registration": (by_registration, lambda: Base.register(Plain), lambda: None),
    "bases": (
        by_inheritance,
        lambda: setattr(Heir, "__bases__", (Far,)),
        lambda: setattr(Heir, "__bases__", (Between,)),
    ),
    "factory": (by_factory, lambda: setattr(FACTORS, "default_factory", lambda: 3.0), lambda: None),
    "globals": (by_globals, lambda: globals().update(RATE=5.0), lambda: None),
    "autocast of the CPU": (
        by_autocast,
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_autocast_enabled("cpu", False),
    ),
    "autocast of CUDA": (
        by_autocast,
        lambda: torch.set_autocast_enabled("cuda", True),
        lambda: torch.set_autocast_enabled("cuda", False),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_without_being_named_ends_a_replay(name: str) -> None:
    body, change, back = CHANGES[name]
    step, x = torch_xla.compile(body), torch.ones(1, device="xla")
    before = body(x).item()
    for _ in range(25):
        assert step(x).item() == before
    change()
    try:
        assert step(x).item() == body(x).item() != before
    finally:
        back()


def test_keys_that_are_equal_and_not_the_same_are_other_arguments() -> None:
    def step(named: dict[Any, torch.Tensor]) -> torch.Tensor:
        ((key, value),) = named.items()
        return value * key[0]

    compiled, x = torch_xla.compile(step), torch.ones(1, dtype=torch.int64, device="xla")
    for _ in range(25):
        assert compiled({(2,): x}).dtype is torch.int64
    assert compiled({(2.0,): x}).dtype is torch.float32


def test_one_call_of_the_process_is_watched_at_a_time() -> None:
    """CPython 3.12 can crash where a thread sets trace functions while another one is traced."""
    inside, leave = threading.Event(), threading.Event()
    waits = True

    def wait_in_the_midst(x: torch.Tensor) -> torch.Tensor:
        if waits:
            inside.set()
            leave.wait(60)
        return x + 1

    traced: list[object] = []
    quick = of(lambda x: (traced.append(sys.gettrace()), x * 2)[1])
    thread = threading.Thread(target=of(wait_in_the_midst), args=(tensor(1.0),))
    thread.start()
    try:
        assert inside.wait(60)
        assert quick(tensor(1.0)).tolist() == [2.0]
        assert "another thread" in quick.why_recorded
        assert traced == [sys.gettrace()]
    finally:
        leave.set()
        thread.join()
    waits = False
    assert quick(tensor(1.0)).tolist() == [2.0]
    assert "another thread" not in quick.why_recorded
