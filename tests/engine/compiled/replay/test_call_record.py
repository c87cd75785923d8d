"""The record of a watched call is compared with the records of other calls."""

import torch

import torch_xla
from tests.support.watched_calls import facts_of
from torch_xla._engine.compiled.replay.call_record import same


def tensor(*numbers: float) -> torch.Tensor:
    x = torch.tensor(numbers).to("xla")
    torch_xla.sync()
    return x


def test_calls_that_do_the_same_are_the_same_and_others_are_told_why() -> None:
    x = tensor(1.0, 2.0)
    number = [2.0]

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * number[0]

    def longer(x: torch.Tensor) -> torch.Tensor:
        return (x * number[0]).sin()

    one, again, other = facts_of(scaled, x), facts_of(scaled, x), facts_of(longer, x)
    assert same(one, again) == "" and same(one, other) == "it records another program from call to call"
    number[0] = 3.0
    assert same(one, facts_of(scaled, x)).startswith("it computes with a Python number that was 2.0 and is 3.0")


def test_what_is_released_holds_no_memory() -> None:
    facts = facts_of(lambda x: x * 2, tensor(1.0))
    facts.release()
    assert facts.places == facts.leaves == facts.written == [] and facts.reached is None and facts.code
