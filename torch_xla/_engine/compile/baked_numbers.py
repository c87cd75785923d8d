"""Whether Python numbers stay constants of a program although they change."""

_is_asked = False


def bake_all(on: bool) -> None:
    """Make every Python number a constant of the programs made from now on, or an argument once it changes."""
    global _is_asked
    _is_asked = on


def are_asked() -> bool:
    """Return whether every Python number is to be a constant."""
    return _is_asked
