"""Choose the part of a tape that a read runs, and what remains."""

from collections.abc import Sequence

import torch

from ..ir.graph import Operation, needed, slots_of

# Dtypes of counters and positions, and so many bytes at the most.
_COUNTERS = (torch.int64, torch.int32)
_MOST_COUNTED = 1 << 20


def parted(
    operations: Sequence[Operation],
    producer: Sequence[int],
    pending: Sequence[int],
    chosen: Sequence[int],
    effects: Sequence[int],
    keeps_counters: bool,
) -> tuple[list[int], list[Operation]]:
    """What running the `chosen` operations gives, and the operations that are left to do.

    Those may take counters that were computed on the way, if `keeps_counters`. A loop that reads in each round and
    never ends its step would count up from its first round otherwise. Of a step that was not cut before they take none:
    what is left of it may be the program of the whole step, which is compiled already.
    """
    done = set(chosen)
    # What somebody holds and is computed on the way is kept: nothing is computed twice.
    outputs = [slot for slot in pending if producer[slot] in done]
    left = [slot for slot in pending if producer[slot] not in done]
    later = [index for index in effects if index not in done]
    kept = needed(operations, producer, left, set(outputs), later)
    # Nor is an effect: what is left takes the results of those that are done, though nobody else holds them.
    made = set(slots_of(operations, (index for index in effects if index in done)))
    if keeps_counters:
        made.update(slot for slot in slots_of(operations, chosen) if _counts(operations[producer[slot]], slot))
    if made:
        kept = needed(operations, producer, left, made.union(outputs), later)
        read = {slot for index in kept for slot in operations[index].operands}
        outputs = sorted({*outputs, *(read & made)})
    return outputs, [operations[index] for index in kept]


# So many operations reads may leave undone, and record anew, time and again.
MOST_LEFT = 64


def grows(operations: Sequence[Operation], chosen: Sequence[int], kept: Sequence[Operation], rest: int) -> bool:
    """Whether what reads leave undone would become more with each: a loop that reads, and never ends its step.

    So it is if to what is left of the `rest` that an earlier read has left more is added, and it is long, or computed
    both now and later, as the parameters are that an optimizer has overwritten: all is run then.
    """
    computed = {operations[index].position for index in chosen}
    old = [operation.position for operation in kept if operation.position < rest]
    return len(kept) > len(old) and (len(old) > MOST_LEFT or not computed.isdisjoint(old))


def _counts(operation: Operation, slot: int) -> bool:
    """Whether a result of an operation may be a counter, or a few positions."""
    spec = operation.plan.outputs[slot - operation.first_output]
    return spec.dtype in _COUNTERS and spec.numel * spec.dtype.itemsize <= _MOST_COUNTED


def with_reported(operations: Sequence[Operation], chosen: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """The outputs, and what is looked at on the host besides."""
    return sorted({*outputs, *slots_of(operations, reporting(operations, chosen))})


def reporting(operations: Sequence[Operation], chosen: Sequence[int]) -> list[int]:
    """Those of the `chosen` operations whose results are looked at on the host."""
    return [index for index in chosen if (effect := operations[index].plan.effect) and effect.is_reported]


def with_end(operations: Sequence[Operation], chosen: Sequence[int], outputs: list[int]) -> list[int]:
    """The outputs; where there are none, a result of an exchange, by which its end can be waited for."""
    if outputs:
        return outputs
    exchanges = [operations[i] for i in chosen if (effect := operations[i].plan.effect) and effect.is_collective]
    sizes = {
        each.first_output + place: spec.numel for each in exchanges for place, spec in enumerate(each.plan.outputs)
    }
    return [min(sizes, key=sizes.__getitem__)] if sizes else outputs
