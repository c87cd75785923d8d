"""The names of composites, and what tells the marks of one composite from those of another."""

import re

# The beginning of the identity of a mark in a graph of `torch.compile`: a program may contain several such graphs.
IN_A_GRAPH = "graph "

_QUALIFIED = re.compile(r"[a-zA-Z]\w*(\.[\w$]+)+")


def qualified(name: str) -> str:
    """Return the name of a composite in StableHLO, where each name has a namespace: `torch_xla` if none is given.

    Raises `ValueError` for what cannot be a name there.
    """
    found = name if "." in name else f"torch_xla.{name}"
    if not _QUALIFIED.fullmatch(found):
        raise ValueError(
            f"the name of a composite has letters, digits and _ in one or more parts, such as 'net' or 'my.net'; got "
            f"{name!r}"
        )
    return found
