"""One place where rooms above register what lower rooms call."""

import pytest

from torch_xla._engine.metrics.observers import Observers


def test_a_slot_has_one_observer_and_gives_back_the_one_before() -> None:
    observers = Observers()
    assert observers.inspect_step is None
    assert observers.register("inspect_step", first := lambda schedule, tape: lambda: None) is None
    assert observers.inspect_step is first
    assert observers.register("inspect_step", None) is first and observers.inspect_step is None


def test_a_block_puts_back_what_was_there_however_it_ends() -> None:
    observers = Observers()
    observers.register("watch_node", before := lambda node, given, result: None)
    with pytest.raises(ValueError, match="stop"), observers.registered("watch_node", lambda *each: None):
        assert observers.watch_node is not before
        raise ValueError("stop")
    assert observers.watch_node is before


def test_a_slot_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError):
        Observers().register("inspect_steps", None)
