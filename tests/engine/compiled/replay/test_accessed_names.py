"""The names that code has read, from its executed instructions."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compiled.replay import pure_allowlist
from torch_xla._engine.compiled.replay.accessed_names import Executed, Reads, name_is_constant

FLAG, OTHER = True, 2


def branches(x: Any) -> Any:
    if x:
        return FLAG
    import math  # noqa: F401

    return x.attribute, OTHER, getattr(x, "named.within")


def executed(function: Callable[..., Any], *args: Any) -> Executed:
    """Return the instructions that a call executes."""
    found = Executed()

    def trace(frame: types.FrameType, kind: str, _: Any) -> Any:
        if frame.f_code is function.__code__:
            frame.f_trace_opcodes = True
            if kind == "opcode":
                found.offsets[frame.f_code].add(frame.f_lasti)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    except AttributeError:
        pass
    finally:
        sys.settrace(before)
    return found


def test_only_what_was_executed_was_read() -> None:
    reads = executed(branches, 1).reads()
    assert reads.codes == {branches.__code__: frozenset({"FLAG"})}
    assert not reads.names & {"attribute", "named"} and not reads.imports
    rest = executed(branches, 0).reads()
    assert "attribute" in rest.names and rest.imports == {"math"} and "FLAG" not in rest.codes[branches.__code__]


def test_of_whole_code_everything_counts() -> None:
    found = Executed()
    found.whole.add(branches.__code__)
    reads = found.reads()
    assert {"FLAG", "OTHER", "getattr"} <= reads.codes[branches.__code__]
    assert {"attribute", "named", "within"} <= reads.names and reads.imports == {"math"}
    assert not reads.everything


@pytest.mark.parametrize("name", sorted(pure_allowlist.ANY_NAME))
def test_some_names_mean_every_name(name: str) -> None:
    found = Executed()
    found.whole.add(compile(f"x.{name}", "code", "eval"))
    assert found.reads().everything


names = st.frozensets(st.sampled_from("abc"), max_size=3)
CODES = [compile(text, "code", "eval") for text in ("a", "b")]
some_reads = st.builds(
    Reads, st.dictionaries(st.sampled_from(CODES), names, max_size=2), names, names, st.booleans(), st.booleans()
)


@given(some_reads, some_reads)
def test_both_cover_each_and_nothing_else(one: Reads, other: Reads) -> None:
    both = one.with_those_of(other)
    assert both.covers(one) and both.covers(other) and both == other.with_those_of(one)
    assert one.covers(one) and one.with_those_of(one) == one
    assert one.covers(other) == (both == one)


def test_a_name_is_constant_where_it_stands_in_the_code() -> None:
    x, name = types.SimpleNamespace(a=1), "a"
    found: list[bool] = []

    def profile(frame: types.FrameType, kind: str, called: Any) -> None:
        if kind == "c_call" and called is getattr:
            found.append(name_is_constant(frame))

    def ask(otherwise: int = 2) -> None:
        getattr(x, "a")  # noqa: B009
        getattr(x, "a", 1)
        getattr(x, "a", None)
        getattr(x, "a", otherwise)
        getattr(x, "a", name)
        getattr(x, name)
        getattr(x, name, "a")
        getattr(*(x, "a"))

    sys.setprofile(profile)
    try:
        ask()
    finally:
        sys.setprofile(None)
    assert found == [True, True, True, True, True, False, False, False]
