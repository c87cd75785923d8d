"""The objects that `torch_xla.compile` returns: a function of regions, a replayed function, or a region."""

from collections.abc import Callable, Mapping
from typing import Any

from ..compiler_options import Option
from .region import Region
from .replay.replayed_function import Replayed, ReplayedByItself


def compiled(
    function: Callable[..., Any] | None,
    name: str,
    full_graph: bool,
    most_graphs: int | None,
    replay: bool | None,
    options: Mapping[str, Option] | None = None,
) -> Any:
    """Return `function` in a region of these rules; without a function, what takes one, or a `with` block."""
    if replay and options:
        raise ValueError(
            "torch_xla.compile(): replay=True with custom_compile_options: a replay runs the program it has found. Set "
            "the options for the whole process: torch_xla.set_custom_compile_options(...)."
        )
    kind = Replayer if replay else Region if replay is False or options else Decider
    region = kind(name, full_graph, most_graphs, options)
    return region if function is None else region(function)


class Replayer(Region):
    """A decorator. A `with` block cannot be replayed: Python would run it."""

    def __call__(self, function: Callable[..., object]) -> Replayed:
        """Return `function`, replayed."""
        return Replayed(function, self)

    def __enter__(self) -> Region:
        raise RuntimeError("replay=True needs a function: write `@torch_xla.compile(replay=True)` above its `def`")


class Decider(Region):
    """A `with` block, or a decorator of a function that is replayed once it has done the same for a while."""

    def __call__(self, function: Callable[..., object]) -> ReplayedByItself:
        """Return `function`, recorded and later replayed."""
        return ReplayedByItself(function, self)
