"""Random programs give on the device what they give on the CPU, whatever their views and writes have in common."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

import torch_xla
from tests.support.examples import examples
from tests.support.programs import Command, check_program, interpreted, programs

QUIET = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    torch_xla.sync()


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(programs)
def test_a_random_program_gives_what_the_cpu_gives(program: list[Command]) -> None:
    with interpreted():
        check_program(program)


@pytest.mark.slow
@settings(max_examples=examples(1_000), deadline=None, suppress_health_check=QUIET)
@given(programs)
def test_many_random_programs_give_what_the_cpu_gives(program: list[Command]) -> None:
    with interpreted():
        check_program(program)


@pytest.mark.slow
@settings(max_examples=examples(225), deadline=None, suppress_health_check=QUIET)
@given(programs)
def test_many_random_programs_give_what_the_cpu_gives_when_they_are_compiled(program: list[Command]) -> None:
    check_program(program)
