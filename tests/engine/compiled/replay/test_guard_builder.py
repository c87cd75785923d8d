"""Everything that a function can see is found: arguments, closure and globals, through objects and modules."""

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_xla._engine.compiled.replay import guard_builder
from torch_xla._engine.compiled.replay.accessed_names import Executed, Reads
from torch_xla._engine.compiled.replay.guard_builder import TooMuch, not_found, reach
from torch_xla._engine.compiled.replay.guards import Reached


def ones(*size: int, **options: Any) -> torch.Tensor:
    return torch.ones(size, device="xla", **options)


def looked_at(*functions: Callable[..., Any]) -> Reads:
    """Return everything that the functions would read if all their code ran."""
    found = Executed()
    for each in functions:
        found.whole.add(each.__code__)
    return found.reads()


def reached(function: Callable[..., Any], *others: Callable[..., Any]) -> Reached:
    return reach([("f", function)], looked_at(function, *others))


SCALE, UNREAD = ones(2), ones(3)
SETTINGS = {"rate": 0.5, "weights": [SCALE]}


def uses_globals() -> Any:
    return SETTINGS["rate"]


def helper() -> Any:
    return SCALE


def calls_helper() -> Any:
    return helper()


def test_globals_that_were_read_are_seen_and_no_others() -> None:
    found = reached(uses_globals)
    assert found.tensor_paths == ["SETTINGS['weights'][0]"] and found.tensors[0] is SCALE
    assert not found.unknown and uses_globals.__code__ in found.codes
    assert id(UNREAD) not in found.seen
    SETTINGS["rate"] = 0.25
    try:
        assert [str(each) for each in found.differences()] == ["SETTINGS['rate']: 0.5 before, 0.25 now"]
    finally:
        SETTINGS["rate"] = 0.5


def test_functions_that_it_calls_are_followed_as_far_as_they_ran() -> None:
    assert [each is SCALE for each in reached(calls_helper, helper).tensors] == [True]
    assert reached(calls_helper).tensors == []


def test_closures_defaults_partials_and_methods_are_followed() -> None:
    a, b, c, d = (ones(n) for n in range(1, 5))

    class Model:
        def __init__(self) -> None:
            self.weight, self.other = c, ones(9)

        def step(self, x: Any = b) -> Any:
            return self.weight + a

    model = Model()
    bound = functools.partial(model.step, d)
    found = reach([("f", bound)], looked_at(Model.step))
    assert {id(each) for each in found.tensors} == {id(each) for each in (a, b, c, d)}


def test_modules_and_optimizers_are_seen_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        model(ones(1, 2)).sum().backward()
        optimizer.step()

    found = reached(step)
    expected = [*model.parameters(), *model.buffers()]
    assert {id(each) for each in expected} <= {id(each) for each in found.tensors}
    optimizer.param_groups[0]["lr"] = 0.2
    assert any("lr" in str(each) for each in found.differences())
    found.accept_all()
    model.eval()
    assert {str(each).rpartition(".")[2] for each in found.differences()} >= {"training: True before, False now"}


def test_what_is_not_understood_is_said_with_its_name() -> None:
    iterator, target = iter([1]), type("Target", (), {})()
    reference = weakref.ref(target)

    def uses() -> Any:
        return iterator, reference

    (first, second) = sorted(reached(uses).unknown)
    assert "(iterator), whose contents are not known" in second
    assert "a weak reference (reference) to something that it does not see otherwise" in first


def test_what_may_not_be_looked_at_is_said() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise LookupError("no request is being handled")

    proxy = Proxy()
    (told,) = reached(lambda: proxy).unknown
    assert told.startswith("it sees what raises LookupError when it is looked at (proxy)")


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (lambda: torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})).to("xla"), "a tensor of class `Own`"),
        (lambda: ones(2, requires_grad=True) * 2, "that was computed with gradients before"),
        (lambda: torch.ones(1 << 20), "a tensor on cpu of 4194304 bytes"),
        (lambda: np.array([object()]), "an array of object"),
        (functools.cache(lambda: lambda: 1)(), ""),
        (lambda: np.ones(3), ""),
        (lambda: torch.ones(3), ""),
    ],
    ids=range(7),
)
def test_tensors_and_arrays_that_cannot_be_compared_are_said(held: Any, text: str) -> None:
    value = held()

    def uses() -> Any:
        return value

    found = reached(uses, *([value] if isinstance(value, types.FunctionType) else []))
    assert (text in found.unknown[0]) if text else not found.unknown


def test_more_than_can_be_looked_at_every_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_builder, "MOST_OBJECTS", 200)
    many = [object() for _ in range(300)]

    def uses() -> Any:
        return many

    with pytest.raises(TooMuch, match="it sees too many objects: pass it what it needs as arguments"):
        reached(uses)


def test_of_the_loaded_modules_those_of_the_program_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = types.ModuleType("a_module_of_the_program")
    own.held_by_this_module_alone = ones(2)
    monkeypatch.setitem(sys.modules, own.__name__, own)

    def uses() -> Any:
        return sys.modules["a_module_of_the_program"].held_by_this_module_alone

    found = reached(uses)
    assert not found.unknown
    assert [each is own.held_by_this_module_alone for each in found.tensors] == [True]
    assert id(own) in found.seen and id(torch.nn) not in found.seen
    own.held_by_this_module_alone = ones(2)
    assert ["a_module_of_the_program" in str(each) for each in found.differences()] == [True]


class Settings:
    @property
    def doubled(self) -> Any:
        return SCALE

    @staticmethod
    def tripled() -> Any:
        return SCALE


@pytest.mark.parametrize("name", ["doubled", "tripled"])
def test_what_ran_by_a_name_that_was_computed_is_found(name: str) -> None:
    held = Settings()

    def uses() -> Any:
        return getattr(held, "".join(name))

    part: Any = Settings.__dict__[name]
    ran = part.fget if name == "doubled" else part.__func__
    reads = looked_at(uses, ran)
    found = reach([("f", uses)], reads)
    assert not_found(found, reads) == [] and [each is SCALE for each in found.tensors] == [True]


def test_cycles_end() -> None:
    some: list[Any] = [ones(2)]
    some.append(some)

    def uses() -> Any:
        return some, uses

    assert len(reached(uses).tensors) == 1


def test_code_that_cannot_be_found_is_named() -> None:
    def hidden() -> None:
        pass

    def uses() -> None:
        pass

    found, reads = reached(uses), looked_at(uses, hidden)
    (text,) = not_found(found, reads)
    assert "hidden" in text and "cannot be found from its arguments, closure and globals" in text
    assert not_found(reached(uses), looked_at(uses)) == []
    reads.compiled = True
    assert not_found(found, reads) == []
