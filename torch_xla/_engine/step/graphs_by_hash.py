"""Run graphs by their hash on other inputs, for programs that bring their own tracer."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from .. import config, imported_objects, metrics
from ..atomic import run_through, stores
from ..compat.names.torch import address_of
from ..compile import program_cache
from ..ir.graph import Graph, decode
from ..ir.graph_text import digest
from ..ir.tape import Tape, Value
from ..metrics.events import Cause
from ..tensor import live_counters
from ..tensor.device import LOCK, Device
from ..tensor.storage import snapshot, wrap
from .executor import prepare as prepare_program
from .executor import run as run_step
from .pending_graph import graph_of, on_xla
from .step import Step
from .sync import compute
from .unlocked_compile import wait_for_turn

_graphs: "OrderedDict[bytes, tuple[Graph, Device]]" = OrderedDict()


def remember(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return 16 bytes by which `run` finds the graph of `tensors`, while it is among the last: as many as programs in
    memory.

    Equal graphs have them in common, from one process to the next. Lines and numbers do not count.
    """
    found = graph_of(tensors)
    name = digest(found.graph)
    _graphs[name] = found.graph, found.device
    _graphs.move_to_end(name)
    while len(_graphs) > config.compilation_cache_size():
        _graphs.popitem(last=False)
    return name


def inputs_of(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """Return the inputs of the graph of `tensors`, as `run` takes them, with the address of the memory of each.

    First the tensors on the device, then the Python numbers, as CPU tensors without dimensions. A number, and a value
    that no tensor holds any more, has an address of its own.
    """
    with LOCK:
        found = graph_of(tensors)
        values = list(found.inputs)
    owners = {id(storage.value): address_of(storage) for storage in _storages()}  # type: ignore[attr-defined]
    shown = [wrap(value) for value in values]
    numbers = [torch.tensor(n, dtype=torch.float64 if isinstance(n, float) else torch.int64) for n in found.numbers]
    made = [*shown, *numbers]
    identities = [address_of(each.untyped_storage()) for each in made]
    for index, value in enumerate(values):
        identities[index] = owners.get(id(value), identities[index])
    return identities, made


def run(name: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of the graph called `name` for these inputs, which are in the order of `inputs_of`."""
    if name not in _graphs:
        raise RuntimeError(
            f"No graph with the hash {name.hex()} is known; `_get_graph_hash(tensors)` makes that of `tensors` known, "
            "and the latest stay (XLA_COMPILATION_CACHE_SIZE)."
        )
    graph, device = _graphs[name]
    with metrics.timed("RunCachedGraphInputData"):
        given = _laid_out(graph, inputs)
        with LOCK:
            values, numbers = _taken(graph, given)
        compute(values)
    if values:
        device = values[0].device  # equal graphs of two devices share their name
    program = program_cache.program_of(graph, (), device.target_of(graph))
    is_first = prepare_program(program, numbers, Cause.READ, lambda: ())
    wait_for_turn(program)
    with LOCK:
        draws = [device.generator.draw() for _ in range(graph.draws)]
        made = [Value(graph.specs[slot], device, None, -1) for slot in graph.outputs]
        run_step(Step(program, values, made, numbers, draws, Cause.READ, is_first=is_first))
        live_counters.values.value += len(made)
        with metrics.timed("RunCachedGraphOutputData"):
            shown = zip(graph.outputs, made, strict=True)
            # A result that is an input stays that: no two values share a buffer.
            return [wrap(values[slot] if slot < len(values) else value) for slot, value in shown]


def _laid_out(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the inputs with the strides that the graph takes: another order in memory is no other input."""
    found = list(inputs)
    with torch.no_grad():
        for index, (spec, tensor) in enumerate(zip(graph.inputs, inputs, strict=False)):
            if tensor.shape == spec.size and tensor.dtype is spec.dtype and tensor.stride() != spec.stride:
                found[index] = torch.empty_strided(
                    spec.size, spec.stride, dtype=spec.dtype, device=tensor.device
                ).copy_(tensor)
    return found


def _taken(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[list[Value], list[float | int]]:
    count = len(graph.inputs)
    if len(inputs) != count + len(graph.number_types):
        raise RuntimeError(
            f"The graph takes {count} tensors on the device and {len(graph.number_types)} numbers, in the order of "
            f"`_get_tensors_xla_device_data_node`; {len(inputs)} came."
        )
    values: list[Value] = []
    for index, (spec, tensor) in enumerate(zip(graph.inputs, inputs[:count], strict=True)):
        value = snapshot(on_xla(tensor))
        if value.spec is not spec.plain:
            raise RuntimeError(
                f"Input {index} of the graph is {spec.dtype} of size {list(spec.size)} and stride {list(spec.stride)}; "
                f"{value.spec.dtype} of size {list(value.spec.size)} and stride {list(value.spec.stride)} came."
            )
        values.append(value)
    types = zip(graph.number_types, inputs[count:], strict=True)
    return values, [kind(tensor.item()) for kind, tensor in types]


def _storages() -> Iterator[torch.UntypedStorage]:
    return (each for each in imported_objects.alive() if type(each) is torch.UntypedStorage and hasattr(each, "value"))


def storages_of(device: Device) -> list[Any]:
    """Return the living storages that hold values of `device`."""
    found: list[Any] = list(_storages())
    return [storage for storage in found if storage.value.device is device]


def stored(values: Sequence[tuple[object, Value]]) -> Iterator[None]:
    """Give each storage its value, as it is run through."""
    return stores([storage for storage, _ in values], "value", [value for _, value in values])


def need_materialisation(device: Device) -> list[bool]:
    """Return whether a value is yet to be computed, for the memory of each living tensor of `device`."""
    return [storage.value.buffer is None for storage in storages_of(device)]


def drop_recorded(device: Device, after: Iterable[object] = ()) -> None:
    """Drop the operations recorded on `device`: the memory that they would have written becomes uninitialised.

    `after` is run through together with that.
    """
    with LOCK:
        tape: Tape = device.tape
        live_counters.values.value += sum(made_by >= 0 for made_by in decode(tape.code)[2])
        fresh = stores((device,), "tape", (device.new_tape(),)), stores((tape,), "ended", (True,))
        run_through(chain(stores(tape.values, "tape", repeat(None)), *fresh, after))
