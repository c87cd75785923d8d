"""The programs in memory, found by their keys; the least recently used leave first."""

from collections import OrderedDict

from .. import config
from ..client.target import Target
from ..graph.graph import Graph
from ..metrics import events
from .executable_key import Key, key_of
from .program import Program

_programs: "OrderedDict[Key, Program]" = OrderedDict()


def program_of(graph: Graph, donated: tuple[int, ...], target: Target) -> Program:
    """The program of a graph, made at first sight."""
    key = key_of(graph, donated, target)
    program = _programs.get(key)
    if program is None:
        events.before_new_program()
        program = _programs[key] = Program(graph, key)
        while len(_programs) > config.compilation_cache_size():
            _programs.popitem(last=False)
    else:
        _programs.move_to_end(key)
    return program


def size() -> int:
    """How many programs are in memory."""
    return len(_programs)


def is_full() -> bool:
    """Whether each new program makes another one leave."""
    return size() >= config.compilation_cache_size()


def clear() -> None:
    """Forgets every program."""
    _programs.clear()
