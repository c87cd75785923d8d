"""The text of a graph that is the same in every process, from which keys are hashed.

In memory a graph is found by the identity of its plans; on disk, and by other processes, by their text.
"""

import re
from collections.abc import Sequence
from dataclasses import fields
from weakref import WeakKeyDictionary

import torch

from ..ir.call_plan import Plan
from ..ir.graph import Graph
from ..ir.value_spec import Spec

# A part of the default text of an object, and of names that are valid in one process only; such names have a serial
# number in front of it.
_ADDRESS = " at 0x"
_OWN = re.compile(r"(_\d+)?( object)? at 0x[0-9a-f]+")

_texts: WeakKeyDictionary[Plan, str] = WeakKeyDictionary()


class Nameless(ValueError):
    """Something in a program has no text that another process would give it, and to it alone."""


def is_named(graph: Graph) -> bool:
    """Return whether the names of everything in `graph` are valid in other processes."""
    try:
        for operation in graph.operations:
            _named(operation.plan)
    except Nameless:
        return False
    return True


def text_of(code: Sequence[object], strict: bool = True) -> str:
    """Return the code of a graph as text, equal in all processes for equal computations.

    An operation without such a text raises `Nameless`. If not `strict`, the part of its name that is common to all
    processes is used, which may not be unique.
    """
    text = _named if strict else _alike
    return "\n".join(text(element) if element.__class__ is Plan else repr(element) for element in code)


def _named(plan: Plan) -> str:
    text = _texts.get(plan)
    if text is None:
        text = _text(plan)
        if _ADDRESS in text:
            raise Nameless(f"{plan.op} has a name, or an argument with a name, of this process alone")
        _texts[plan] = text
    return text


def _alike(plan: Plan) -> str:
    return _OWN.sub("", _texts.get(plan) or _text(plan))


def _text(plan: Plan) -> str:
    # A decomposition has a serial number of this process beside its operator; sizes and arguments identify it fully.
    op = plan.op[0] if isinstance(plan.op, tuple) else plan.op
    parts = [getattr(plan, field.name) for field in fields(plan) if field.name not in ("op", "inside")]
    return " ".join(map(_words, (op, *parts)))


def _words(value: object) -> str:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return f"[{','.join(map(_words, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{_words(v)}' for k, v in value.items())}}}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, str | int | float | complex | Spec | torch.dtype | torch.Size) or value is None:
        return repr(value)
    return str(value)
