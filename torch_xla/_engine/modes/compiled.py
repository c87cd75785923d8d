"""What `torch_xla.compile` returns: a function whose calls are regions, one that is replayed, or a region itself."""

from collections.abc import Callable, Mapping
from typing import Any

from ..compiler_options import Option
from .region import Region
from .replayed import Replayed


def compiled(
    function: Callable[..., Any] | None,
    name: str,
    full_graph: bool,
    most_graphs: int | None,
    replay: bool,
    options: Mapping[str, Option] | None = None,
) -> Any:
    """`function` in a region of these rules; without a function, what takes one, or a `with` block."""
    if replay and options:
        raise ValueError(
            "torch_xla.compile(): replay=True with custom_compile_options: a replay runs the program it has found. Set "
            "the options for the whole process: torch_xla.set_custom_compile_options(...)."
        )
    region = Region(name, full_graph, most_graphs, options)
    if not replay:
        return region if function is None else region(function)
    return Replayer(region) if function is None else Replayed(function, region)


class Replayer:
    """A decorator. A `with` block cannot be replayed: Python would run it."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def __call__(self, function: Callable[..., Any]) -> Replayed:
        """`function`, replayed."""
        return Replayed(function, self._region)

    def __enter__(self) -> None:
        raise RuntimeError("replay=True needs a function: write `@torch_xla.compile(replay=True)` above its `def`")

    def __exit__(self, *_: object) -> None:
        return None
