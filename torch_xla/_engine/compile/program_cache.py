"""The programs in memory, by their keys; the least recently used leave first."""

import warnings
from collections import OrderedDict
from collections.abc import Callable

from .. import config
from ..ir.graph import Graph
from ..metrics.observers import observers
from ..runtime import memory_mappings
from ..runtime.device_assignment import Target
from .executable_key import Key, key_of
from .program import Program

_programs: "OrderedDict[Key, Program]" = OrderedDict()

# Other holders of programs. Each is a function that drops the holder's least recently used programs.
when_scarce: list[Callable[[], None]] = []


def program_of(graph: Graph, donated: tuple[int, ...], target: Target) -> Program:
    """Return the program of a graph, made at first sight."""
    key = key_of(graph, donated, target)
    program = _programs.get(key)
    if program is None:
        if observers.before_new_program is not None:
            observers.before_new_program()
        if memory_mappings.are_scarce():
            _forget_half()
        program = _programs[key] = Program(graph, key)
        while len(_programs) > config.compilation_cache_size():
            _programs.popitem(last=False)
    else:
        _programs.move_to_end(key)
    return program


def _forget_half() -> None:
    for _ in range(len(_programs) // 2):
        _programs.popitem(last=False)
    for forget in when_scarce:
        forget()
    warnings.warn(
        "Compiled code takes so many of the memory mappings that this process may have (vm.max_map_count) that the "
        "programs leave that were not used for longest. Fewer shapes need fewer (torch_xla.experimental.buckets); "
        "`sysctl -w vm.max_map_count=1000000` allows more.",
        stacklevel=2,
    )


def size() -> int:
    """Return the number of programs in memory."""
    return len(_programs)


def is_full() -> bool:
    """Return whether each new program evicts another one."""
    return size() >= config.compilation_cache_size()


def clear() -> None:
    """Drop every program."""
    _programs.clear()
