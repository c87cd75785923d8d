"""The programs in memory: found by graph, donation, target and dtype mode; the least recently used leave first."""

from collections import OrderedDict
from typing import Any

from .. import config, dtypes
from ..client.target import Target
from ..graph.graph import Graph
from ..metrics import events
from .program import Program

_programs: "OrderedDict[Any, Program]" = OrderedDict()


def program_of(graph: Graph, donated: tuple[int, ...], target: Target) -> Program:
    """The program of a graph, made at first sight."""
    key = (graph.code, donated, target, dtypes.device_mode())
    program = _programs.get(key)
    if program is None:
        events.before_new_program()
        program = _programs[key] = Program(graph, donated, target)
        while len(_programs) > config.compilation_cache_size():
            _programs.popitem(last=False)
    else:
        _programs.move_to_end(key)
    return program


def size() -> int:
    """How many programs are in memory."""
    return len(_programs)


def clear() -> None:
    """Forgets every program."""
    _programs.clear()
