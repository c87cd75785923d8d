"""Messages of protocol buffers, written as the encoding is described."""

Field = tuple[int, int | bytes | str]


def varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    low = number & 127
    return bytes([low]) if number < 128 else bytes([low | 128]) + varint(number >> 7)


def written(*fields: Field) -> bytes:
    """Each field by its number and kind, then its value: a number, or what has a length."""
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            found += varint(number << 3 | 2) + varint(len(content)) + content
    return found
