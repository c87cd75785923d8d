"""Messages of protocol buffers are read as they were written, and what is none is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.protobuf import Field, written
from torch_xla._engine.planning.protobuf_reader import number_of, parsed, text_of

FIELDS = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2**64 - 1) | st.binary(max_size=200)), max_size=8)


@settings(max_examples=40)
@given(FIELDS)
def test_what_is_written_is_read(fields: list[Field]) -> None:
    expected: dict[int, list[int | bytes]] = {}
    for number, value in fields:
        expected.setdefault(number, []).append(value)
    assert parsed(written(*fields)) == expected


def test_the_first_of_a_field_and_what_is_missing() -> None:
    message = parsed(written((1, "π".encode()), (1, b"other"), (2, 300), (2, 7)))
    assert text_of(message, 1) == "π" and number_of(message, 2) == 300
    assert text_of(message, 9) == "" and number_of(message, 9) == 0


def test_numbers_of_fixed_size_are_skipped_over() -> None:
    data = bytes([1 << 3 | 1]) + bytes(8) + bytes([2 << 3 | 5]) + bytes(4) + written((3, 1))
    assert parsed(data) == {1: [bytes(8)], 2: [bytes(4)], 3: [1]}


@pytest.mark.parametrize("data", [b"\x08", b"\x08\x80", b"\x80", b"\x0a\x05abc", b"\x0d\x00", b"\x0b"], ids=repr)
def test_what_is_cut_off_or_of_another_kind_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match="^not a message: "):
        parsed(data)
