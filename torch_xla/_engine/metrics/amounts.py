"""Bytes and seconds as people read them."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(number: float) -> str:
    """Bytes for people: "1.50 GB" is 1.5 × 10⁹."""
    unit = 0
    while abs(number) >= 1000 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.2f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.1f} µs"
    )
