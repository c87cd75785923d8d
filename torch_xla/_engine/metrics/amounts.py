"""Bytes and seconds as people read them."""

_UNITS = ("B", "kB", "MB", "GB", "TB")
_NEXT = 999.995  # what would be "1000.00" is 1.00 of the next unit


def size(number: float) -> str:
    """Bytes for people: "1.50 GB" is 1.5 × 10⁹."""
    unit = 0
    while abs(number) >= _NEXT and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.2f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return (
        f"{seconds:.2f} s"
        if seconds >= _NEXT / 1e3
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= _NEXT / 1e6
        else f"{seconds * 1e6:.1f} µs"
    )
