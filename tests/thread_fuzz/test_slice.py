"""A slice of `python -m tests.thread_fuzz`."""

import pytest

from .work import Shared, run


def check(seeds: range) -> None:
    shared = Shared()
    for seed in seeds:
        run(seed, shared)


@pytest.mark.filterwarnings("ignore")
def test_no_update_of_several_threads_is_lost() -> None:
    check(range(8))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_no_update_of_several_threads_is_lost_in_many_runs() -> None:
    check(range(100, 130))
