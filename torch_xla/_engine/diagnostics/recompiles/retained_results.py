"""Find what keeps results of a step alive: the user's variables, and the autograd graphs of tensors in them.

Searched when a program is compiled because more is held than before, never in a step that runs again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...ir.graph import Operation, decode
from ...ir.tape import Tape, Value
from ...runtime.device_assignment import Target
from ...tensor.device import existing_devices
from ...tensor.variable_names import NameSearch, value_of, visit_variables

_MOST_NODES = 2000  # of autograd graphs
_SHOWN = 2


class _Keepers(NameSearch):
    """Finds variables that lead to some values, directly or through an autograd graph."""

    def __init__(self, values: Iterable[Value]) -> None:
        super().__init__(())
        self.wanted = {id(value) for value in values}
        self.found: dict[int, str] = {}  # by value, the variable that leads to it
        self.with_gradients: list[tuple[str, torch.Tensor]] = []

    @property
    def is_over(self) -> bool:
        """Return whether all results are found, or the search has reached its limit."""
        return self.wanted == self.found.keys() or self.is_long

    def note(self, name: str, tensor: torch.Tensor, is_state: bool = False) -> None:
        """Look at one tensor that a variable leads to."""
        value = value_of(tensor)
        if id(value) in self.wanted:
            self.found.setdefault(id(value), name)
        if tensor.grad_fn is not None:
            self.with_gradients.append((name, tensor))


def keepers(target: Target, operations: Iterable[Operation]) -> str:
    """Return who holds results of these operations of the step about to run: "'kept[0]'"; "" if unknown."""
    values = [value for tape in _tapes(target) for value in _results(tape, list(operations))]
    search = _Keepers(values)
    visit_variables(search)
    variables = set(search.found.values())
    by_gradients: dict[int, str] = {}
    for name, tensor in search.with_gradients:
        for saved in map(id, map(value_of, _saved(tensor))):
            if saved in search.wanted and saved not in search.found:
                by_gradients.setdefault(saved, name)
    graphs = set(by_gradients.values())
    found = [f"'{name}'" + " and the graph of its gradient" * (name in graphs) for name in sorted(variables)]
    found += [f"the graph of the gradient of '{name}'" for name in sorted(graphs - variables)]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _tapes(target: Target) -> Iterator[Tape]:
    return (device.tape for device in existing_devices() if device.tape.code and device.target.device in target.local)


def _results(tape: Tape, wanted: list[Operation]) -> Iterator[Value]:
    recorded = {operation.position: operation for operation in decode(tape.code)[1]}
    for operation in wanted:
        here = recorded.get(operation.position)
        # A program that was known from another step has the positions of that one.
        if here is not None and here.plan is operation.plan:
            yield from tape.values[here.first_output : here.first_output + len(here.plan.outputs)]


def _saved(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that the graph of a tensor's gradient holds."""
    seen: set[Any] = set()
    nodes = [tensor.grad_fn]
    while nodes and len(seen) < _MOST_NODES:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                try:
                    found = getattr(node, name)
                except RuntimeError:
                    continue  # freed by `backward()`
                for each in found if isinstance(found, (list, tuple)) else (found,):
                    # Do not unpack what a hook has packed: checkpointing would compute it again, on this very tape.
                    data = each.data if each.unpack_hook is None else None
                    if isinstance(data, torch.Tensor) and data.device.type == "xla":
                        yield data
