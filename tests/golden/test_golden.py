"""A change of a recorded graph, or of its lowering, shows as a diff of a stored text."""

import pytest

from tests.golden.programs import PROGRAMS
from tests.golden.text import FOLDER, JAX_RELEASE, WRITTEN_WITH, path_of, text_of


@pytest.mark.skipif(
    WRITTEN_WITH.read_text().strip() != JAX_RELEASE, reason="StableHLO is kept as another release of JAX writes it"
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_recorded_and_lowered_as_before(name: str) -> None:
    kept = path_of(name).read_text()
    assert text_of(name) == kept, f"read the difference, then `python -m tests.golden --write` ({path_of(name).name})"


def test_every_text_has_its_program() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*PROGRAMS, "jax_release"}
