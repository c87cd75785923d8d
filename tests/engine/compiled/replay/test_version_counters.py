"""The steps of the version counters of tensors that a call writes to."""

import torch

from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.compiled.replay.call_record import Facts, VersionChange
from torch_xla._engine.compiled.replay.version_counters import VersionChanges


def ones(*size: int) -> torch.Tensor:
    return torch.ones(size, device="xla")


def step(facts: Facts, arguments: list[torch.Tensor]) -> None:
    stepped, others = VersionChanges(facts).of(arguments)
    private.increment_version(stepped)
    list(others)


def test_each_is_stepped_as_often_as_it_was_written() -> None:
    seen, leaf, argument = ones(2), ones(2).requires_grad_(), ones(2)
    leaf.grad = ones(2)
    gradient = leaf.grad
    written = [
        VersionChange(seen, count=2),
        VersionChange(ones(2), argument=0, count=3),
        VersionChange(gradient, leaf=0, count=1),
    ]
    before = [each._version for each in (seen, argument, gradient, leaf)]
    step(Facts(written=written, leaves=[leaf]), [argument])
    after = [each._version for each in (seen, argument, gradient, leaf)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 3, 1, 0]


def test_a_leaf_without_a_gradient_has_nothing_to_step() -> None:
    leaf = ones(2).requires_grad_()
    step(Facts(written=[VersionChange(ones(2), leaf=0, count=1)], leaves=[leaf]), [])
    assert leaf._version == 0


def test_what_shares_a_counter_is_stepped_once() -> None:
    x = ones(4)
    view = x[1:]
    assert view._version == x._version
    before = x._version
    step(Facts(written=[VersionChange(x, count=2), VersionChange(view, count=2)]), [])
    assert x._version == view._version == before + 2


def test_what_shares_memory_and_no_counter_is_stepped_by_itself() -> None:
    x = ones(4)
    other = x.detach()
    alone = x.data
    counts = [each._version for each in (x, other, alone)]
    step(Facts(written=[VersionChange(x, count=2), VersionChange(alone, argument=0, count=1)]), [alone])
    assert [each._version for each in (x, other, alone)] == [counts[0] + 2, counts[1] + 2, counts[2] + 1]


def test_arguments_are_those_of_the_call() -> None:
    first, second = ones(2), ones(2)
    facts = Facts(written=[VersionChange(first, argument=0, count=1)])
    versions = first._version, second._version
    step(facts, [second])
    assert (first._version, second._version) == (versions[0], versions[1] + 1)
