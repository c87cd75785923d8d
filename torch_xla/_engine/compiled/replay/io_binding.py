"""Bind a replay's program to memory: where each input comes from and each result goes, packed or not."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...compile import program_cache
from ...compile.program import Program
from ...compile.source_metadata import Origins
from ...ir.call_plan import Operand, Plan, interned
from ...ir.graph import Graph, Operation
from ...ir.input_output_alias import in_order, takers
from ...ir.value_spec import Spec, spec_of
from ...lowering.machinery.packed_arrays import PACK, UNPACK
from ...runtime.device_assignment import Target


@dataclass
class BoundProgram:
    """A program with the places its inputs come from and its outputs go to.

    A place is memory that outlives the call: the arguments come first, then what the function sees, then packs.
    """

    program: Program
    inputs: list[int]  # the place of each input
    in_place: list[tuple[int, int]] = field(default_factory=list)  # (output, input whose value takes it)
    elsewhere: list[tuple[int, int, Spec]] = field(default_factory=list)  # (output, place, spec)
    new: dict[Hashable, int] = field(default_factory=dict)  # memory that only the result has → output
    updated: list[int] = field(default_factory=list)  # outputs that are packs and replace packs
    replaced: list[int] = field(default_factory=list)  # outputs that are packs of new values

    @cached_property
    def specs(self) -> tuple[Spec, ...]:
        """The specs of the inputs, without their shardings."""
        return tuple(spec.plain for spec in self.program.graph.inputs)

    @cached_property
    def donated(self) -> tuple[int, ...]:
        """The inputs whose memory the program may write over."""
        return self.program.donated

    @cached_property
    def bytes(self) -> int:
        """Return the number of bytes that it writes, each value counted once."""
        graph = self.program.graph
        return sum(graph.specs[slot].numel * int(graph.specs[slot].dtype.itemsize) for slot in graph.outputs)

    @cached_property
    def rewritten(self) -> list[int]:
        """The places whose value is an input and is not the one that holds the result."""
        read = set(self.inputs)
        return [place for _, place, _ in self.elsewhere if place in read]

    @cached_property
    def made(self) -> list[tuple[int, Spec]]:
        """The outputs that become new values, each with its spec."""
        outputs = [*(output for output, _, _ in self.elsewhere), *self.new.values()]
        graph = self.program.graph
        return [(output, graph.specs[graph.outputs[output]]) for output in dict.fromkeys(outputs)]


@dataclass(frozen=True, slots=True)
class Packs:
    """The packed values of a program: for each pack its inputs, replaced in place, or its new outputs."""

    kept: Sequence[Sequence[int]]  # inputs
    renewed: Sequence[Sequence[int]]  # outputs


def flat_spec(specs: Sequence[Spec]) -> Spec:
    """Return the spec of a pack of values, which are of one dtype."""
    return spec_of((sum(spec.numel for spec in specs),), (1,), specs[0].dtype)


def pack_graph(specs: Sequence[Spec]) -> Graph:
    """Make one array of many."""
    return Graph(
        tuple(specs), (Operation(_pack_plan(specs), tuple(range(len(specs))), 0, -1, len(specs), -1),), (len(specs),)
    )


def unpack_graph(specs: Sequence[Spec]) -> Graph:
    """Make many arrays of one."""
    operation = Operation(_unpack_plan(specs), (0,), 0, -1, 1, -1)
    return Graph((flat_spec(specs),), (operation,), tuple(range(1, len(specs) + 1)))


def _pack_plan(specs: Sequence[Spec]) -> Plan:
    operands = tuple(Operand(index) for index in range(len(specs)))
    return interned(Plan(PACK, ((operands,), {}), tuple(specs), (), (flat_spec(specs),)))


def _unpack_plan(specs: Sequence[Spec]) -> Plan:
    sizes = tuple(tuple(spec.size) for spec in specs)
    arguments: tuple[Any, ...] = ((Operand(0), sizes), {})
    return interned(Plan(UNPACK, arguments, (flat_spec(specs),), (), tuple(specs), (len(specs),)))


def packed(plain: BoundProgram, packs: Packs, first_place: int, target: Target) -> BoundProgram:
    """Return the same with packs, which have their places behind all others."""
    graph, kept = plain.program.graph, packs.kept
    members = {index for group in kept for index in group}
    rest = [index for index in range(len(graph.inputs)) if index not in members]
    number = {index: len(kept) + nth for nth, index in enumerate(rest)}
    output_of = {into: output for output, into in plain.in_place}
    joined = [[output_of[index] for index in group] for group in kept] + [list(group) for group in packs.renewed]
    gone = {output for group in joined for output in group}
    left = [output for output in range(len(graph.outputs)) if output not in gone]
    whole = _with_packs(graph, kept, rest, joined, left)
    # Order the results so that JAX donates to each the buffer that it replaces.
    behind = {output: len(joined) + nth for nth, output in enumerate(left)}
    in_place = [(nth, nth) for nth in range(len(kept))]
    in_place += [(behind[output], number[into]) for output, into in plain.in_place if into not in members]
    wanted = [number[index] for index in plain.donated if index not in members]
    donated = takers(whole, [*range(len(kept)), *wanted], {into for _, into in in_place})
    order = in_order(whole, donated, {into: output for output, into in in_place})
    whole = replace(whole, outputs=tuple(whole.outputs[output] for output in order))
    moved_to = {output: now for now, output in enumerate(order)}
    program = program_cache.program_of(whole, donated, target)
    program.origins = _origins(plain.program.origins, len(kept), len(joined))
    return BoundProgram(
        program,
        [*range(first_place, first_place + len(kept)), *(plain.inputs[index] for index in rest)],
        [(moved_to[output], into) for output, into in in_place[len(kept) :]],
        [(moved_to[behind[output]], place, spec) for output, place, spec in plain.elsewhere if output in behind],
        {key: moved_to[behind[output]] for key, output in plain.new.items()},
        [moved_to[nth] for nth in range(len(kept))],
        [moved_to[nth] for nth in range(len(kept), len(joined))],
    )


def _with_packs(
    graph: Graph,
    kept: Sequence[Sequence[int]],
    rest: Sequence[int],
    joined: Sequence[Sequence[int]],
    left: Sequence[int],
) -> Graph:
    """Return the graph, behind an operation for each pack to take apart and before one for each to put together."""
    unpacked = [_unpack_plan([graph.inputs[index] for index in group]) for group in kept]
    inputs = [*(plan.operands[0] for plan in unpacked), *(graph.inputs[index] for index in rest)]
    slots = {index: len(kept) + nth for nth, index in enumerate(rest)}
    end = len(inputs)
    operations: list[Operation] = []
    for nth, (group, plan) in enumerate(zip(kept, unpacked, strict=True)):
        operations.append(Operation(plan, (nth,), 0, -1, end, -1))
        slots.update({index: end + place for place, index in enumerate(group)})
        end += len(group)
    shift = end - len(graph.inputs)
    slots.update({slot: slot + shift for slot in range(len(graph.inputs), len(graph.specs))})
    for operation in graph.operations:
        operands = tuple(slots[slot] for slot in operation.operands)
        operations.append(replace(operation, operands=operands, first_output=operation.first_output + shift))
    end = len(graph.specs) + shift
    outputs: list[int] = []
    for group in joined:
        taken = [graph.outputs[output] for output in group]
        plan = _pack_plan([graph.specs[slot] for slot in taken])
        operations.append(Operation(plan, tuple(slots[s] for s in taken), len(graph.number_types), -1, end, -1))
        outputs.append(end)
        end += 1
    outputs += [slots[graph.outputs[output]] for output in left]
    return Graph(tuple(inputs), tuple(operations), tuple(outputs))


def _origins(plain: Origins, before: int, after: int) -> Origins:
    lines = [*[None] * before, *plain.lines, *[None] * after] if plain.lines else ()
    return Origins(lines, [*[()] * before, *plain.scopes, *[()] * after] if plain.scopes else ())
