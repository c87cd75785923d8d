"""Format bytes and seconds for people."""

_UNITS = ("B", "kB", "MB", "GB", "TB")
_NEXT = 999.995  # from here on "1000.00" is printed as 1.00 of the next unit


def size(number: float) -> str:
    """Return bytes for people: "1.50 GB" is 1.5 × 10⁹."""
    unit = 0
    while abs(number) >= _NEXT and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.2f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Return seconds for people."""
    return (
        f"{seconds:.2f} s"
        if seconds >= _NEXT / 1e3
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= _NEXT / 1e6
        else f"{seconds * 1e6:.1f} µs"
    )
