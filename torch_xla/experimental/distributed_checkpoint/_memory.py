"""Checkpoints in the memory of hosts: each process keeps the state that it has, and another host has a copy of it.

The files are in shared memory, which outlives the processes that `torchrun` starts again. Of each process there are two
slots: the last whole state, and the one that is being written. Hosts exchange copies through the process group of the
manager.
"""

import hashlib
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..._engine import metrics
from ._helpers import _CpuShards, _is_on_xla, _load, _own, flatten_state_dict, set_element, unflatten_state_dict
from ._keeper import folder_of_job, start_again
from ._slots import Head, Kept, Slot, array_at, room, sum_of, tensor_at

_ALIGNED = 64
_SENT = 1 << 28  # bytes of a message


class Copied(NamedTuple):
    """A state in a slot that is not valid yet: its head lacks the checksum."""

    slot: Slot
    head: Head
    to_save: frozenset[tuple[str, tuple[int, ...]]]  # the parts which this process writes to a path
    paths: Any  # of the names


class Memory:
    """The states in the memory of the hosts of a job."""

    def __init__(self, path: str, every: int, group: dist.ProcessGroup | None) -> None:
        self._every, self._group = every, group
        self.rank, self.world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.folder = folder_of_job() / hashlib.sha256(path.encode()).hexdigest()[:16]
        self.folder.mkdir(mode=0o700, exist_ok=True)
        hosts = self._gather((Path("/proc/sys/kernel/random/boot_id").read_text(), str(self.folder)))
        self._holders = holders_of(hosts)
        self._written = [each for each in range(self.world) if each == self.rank or self._holders[each] == self.rank]
        self._slots = {rank: [Slot(self.folder, rank, number) for number in range(2)] for rank in self._written}
        self._is_fresh = True  # what is there is of the processes before
        self.source = ""

    def is_due(self, step: int) -> bool:
        """Return whether a step is kept."""
        return step % self._every == 0

    def copy(self, step: int, state_dict: dict[str, Any]) -> Copied | None:
        """Copy a state to a slot; each byte once. Returns `None` with a warning if the host has no memory for it."""
        self._see_to_keeper(step)
        if self._is_fresh:  # a state of a later step is one that this run has not come to
            self._forget(step - 1, self._written)
            self._is_fresh = False
        flat, paths = flatten_state_dict(state_dict)
        parts = {name: _own(each).parts() for name, each in flat.items() if isinstance(each, torch.Tensor)}
        sizes = {name: {begin: part.array.shape for begin, part in each.items()} for name, each in parts.items()}
        tensors = {name: _described(flat[name], each) for name, each in sizes.items()}
        others = pickle.dumps({name: each for name, each in flat.items() if name not in parts})
        every = {(name, begin): part for name, each in parts.items() for begin, part in each.items()}
        at, size = {}, 0
        for key, part in every.items():
            at[key] = size
            size += -(-part.array.nbytes // _ALIGNED) * _ALIGNED
        slot = self._oldest(self.rank)
        try:
            memory = slot.begin(size)
        except OSError as error:
            slot.drop()
            warnings.warn(
                f"CheckpointManager: step {step} is not kept in memory: {size / 1e9:.3g} GB in {self.folder} failed: "
                f"{error}. A container's shared memory may be small; give it more (docker run --shm-size).",
                stacklevel=4,
            )
            return None
        for key, part in every.items():
            array_at(memory, at[key], part.array.shape, tensors[key[0]].dtype)[...] = part.array
        head = Head(step, self.rank, self.world, size, 0, tensors, at, others)
        return Copied(slot, head, frozenset(key for key, part in every.items() if part.is_first), paths)

    def _see_to_keeper(self, step: int) -> None:
        folder, outcome = self.folder.parent, "another one is started. The states in this memory are whole."
        try:
            if not start_again(folder):
                return
            metrics.count("CheckpointKeeperRestart")
        except OSError as error:
            metrics.count("CheckpointKeeperLost")
            outcome = f"no other starts: {error}. Remove the folder when the job has ended."
        warnings.warn(
            f"CheckpointManager: at step {step}, the process that gives {folder} back at the end of the job is gone; "
            f"{outcome}",
            stacklevel=5,
        )

    @staticmethod
    def to_save(copied: Copied, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a copied state which this process writes to a path, on the memory of the slot."""
        memory, flat = copied.slot.memory(), flatten_state_dict(state_dict)[0]
        found = pickle.loads(copied.head.others)
        for name, kept in copied.head.tensors.items():
            shards = {
                begin: tensor_at(memory, copied.head.at[name, begin], size, kept.dtype)
                for begin, size in kept.parts.items()
                if (name, begin) in copied.to_save
            }
            is_plain = not _is_on_xla(flat[name]) and not isinstance(flat[name], DTensor)
            found[name] = (
                next(iter(shards.values())) if is_plain else _CpuShards(shards, torch.Size(kept.shape), kept.dtype)
            )
        return unflatten_state_dict({name: found[name] for name in flat}, copied.paths)

    def finish(self, copied: Copied | None) -> None:
        """Make a copy valid, and exchange it with other hosts. Returns when all processes have done so."""
        head, data = b"", torch.empty(0, dtype=torch.uint8)
        if copied is not None:
            data = copied.slot.memory()
            head = pickle.dumps(tuple(copied.head._replace(sum=sum_of(data))))
            copied.slot.commit(head)
        self._exchange(head, data)
        if self._group is not None:
            dist.barrier(self._group)  # a process writes over a state when all have the next

    def _exchange(self, head: bytes, data: torch.Tensor) -> None:
        """Send a state to the process that holds its copy, and write the copies of other processes."""
        to, sources = self._holders[self.rank], [each for each in self._written if each != self.rank]
        sizes = {each: torch.zeros(2, dtype=torch.int64) for each in sources}
        ours = torch.tensor([len(head), len(data)])
        self._swap([] if to is None else [(to, ours)], list(sizes.items()))
        heads = {each: torch.empty(int(size[0]), dtype=torch.uint8) for each, size in sizes.items()}
        slots = {each: self._oldest(each) for each in sources}
        bodies = {each: _room(slots[each], int(size[1])) for each, size in sizes.items()}
        sent = torch.frombuffer(bytearray(head or b"?"), dtype=torch.uint8)[: len(head)]
        self._swap(
            [] if to is None else [(to, sent), (to, data)],
            [(each, part) for each in sources for part in (heads[each], bodies[each][0])],
        )
        for each in sources:
            if len(heads[each]) and bodies[each][1]:
                slots[each].commit(heads[each].numpy().tobytes())

    def restore(self, state_dict: Mapping[str, Any], step: int | None, other: int) -> int | None:
        """Load the newest state that is there of all processes, and return its step.

        Returns `None` if there is none of `step`, or none as new as `other`. Warns of each that cannot be loaded.
        """
        while True:
            held = self._gather(self._held())
            steps = [{each for _, has in held for each in has.get(rank, ())} for rank in range(self.world)]
            common = {each for each in set.intersection(*steps) if each >= other and step in (None, each)}
            if not common:
                self._tell_what_lacks(held, steps, other if step is None else step)
                return None
            newest = max(common)
            sources = [self._source(rank, newest, held) for rank in range(self.world)]
            head, data = self._fetch(newest, sources)
            problem = "damaged" if head is None or sum_of(data) != head.sum else _misfit(head.tensors, state_dict)
            problems = self._gather(problem)
            if not any(problems):
                assert head is not None
                self._put(head, data, state_dict)
                self.source = "memory" if sources[self.rank] == self.rank else "peer"
                self.forget(newest)
                return newest
            self._tell_and_drop(newest, problems, sources)
            if any(each not in ("", "damaged") for each in problems):
                return None

    def forget(self, after: int = -1) -> None:
        """Drop what is later than a step, in all processes: the run goes on from there."""
        self._forget(after, range(self.world))
        self._is_fresh = False
        if self._group is not None:
            dist.barrier(self._group)

    def _forget(self, after: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            # The next states of this process need its memory.
            give_up = Slot.forget if rank in self._written else Slot.drop
            for slot in self._slots_of(rank):
                head = slot.read_head()
                if head is None or head.step > after:
                    give_up(slot)

    def _slots_of(self, rank: int) -> list[Slot]:
        return self._slots.get(rank) or [Slot(self.folder, rank, number) for number in range(2)]

    def _oldest(self, rank: int) -> Slot:
        heads = [(head.step if (head := slot.read_head()) else -1) for slot in self._slots[rank]]
        return self._slots[rank][heads.index(min(heads))]

    def _held(self) -> tuple[set[int], dict[int, list[int]]]:
        """Return the numbers of processes in the heads on this host, and the steps of each process of this program."""
        heads = [Slot(self.folder, *map(int, each.stem.split("-"))).read_head() for each in self.folder.glob("*.head")]
        found: dict[int, list[int]] = {}
        for head in heads:
            if head is not None and head.world == self.world:
                found.setdefault(head.rank, []).append(head.step)
        return {head.world for head in heads if head is not None}, found

    def _source(self, rank: int, step: int, held: Sequence[tuple[set[int], dict[int, list[int]]]]) -> int:
        having = [each for each, (_, has) in enumerate(held) if step in has.get(rank, ())]
        return rank if rank in having else having[0]

    def _fetch(self, step: int, sources: list[int]) -> tuple[Head | None, torch.Tensor]:
        """Return head and data of this process's state, from this host's memory or from the process that has it."""
        asked = [each for each, source in enumerate(sources) if source == self.rank and each != self.rank]
        found = {each: self._slot_at(each, step) for each in asked}
        heads = {each: pickle.dumps(tuple(head)) for each, (_, head) in found.items()}
        sizes = {each: torch.tensor([len(heads[each]), found[each][1].size]) for each in asked}
        source, size = sources[self.rank], torch.zeros(2, dtype=torch.int64)
        comes = source != self.rank
        self._swap(list(sizes.items()), [(source, size)] if comes else [])
        head, data = torch.empty(int(size[0]), dtype=torch.uint8), room(int(size[1]))
        sent = {each: torch.frombuffer(bytearray(heads[each]), dtype=torch.uint8) for each in asked}
        self._swap(
            [(each, part) for each in asked for part in (sent[each], found[each][0].sent())],
            [(source, head), (source, data)] if comes else [],
        )
        if comes:
            return Head(*pickle.loads(head.numpy().tobytes())), data
        slot, own = self._slot_at(self.rank, step)
        return (own, slot.read()) if slot.data.exists() else (None, data)

    def _slot_at(self, rank: int, step: int) -> tuple[Slot, Head]:
        for slot in self._slots_of(rank):
            head = slot.read_head()
            if head is not None and head.step == step:
                return slot, head
        raise RuntimeError(f"CheckpointManager: the state of process {rank} of step {step} is gone from {self.folder}")

    def _put(self, head: Head, data: torch.Tensor, state_dict: Mapping[str, Any]) -> None:
        flat, paths = flatten_state_dict(dict(state_dict))
        tensors = {name: _own(value) for name, value in flat.items() if isinstance(value, torch.Tensor)}
        _load([(own, _parts_in(head, data, name)) for name, own in tensors.items()])
        others = pickle.loads(head.others)
        for name, path in paths.items():
            if name in others:
                set_element(cast(dict[str, Any], state_dict), path, others[name])

    def _tell_and_drop(self, step: int, problems: Sequence[str], sources: Sequence[int]) -> None:
        for rank, problem in enumerate(problems):
            if problem and self.rank == 0:
                warnings.warn(
                    f"CheckpointManager: step {step} in the memory of process {sources[rank]}'s host cannot be loaded "
                    f"in process {rank}: {problem}",
                    stacklevel=5,
                )
            if problem == "damaged" and sources[rank] == self.rank:
                self._slot_at(rank, step)[0].drop()

    def _tell_what_lacks(self, held: Sequence[Any], steps: Sequence[set[int]], other: int) -> None:
        """Warn of states in memory that cannot be used, unless the path has a newer checkpoint."""
        worlds = set().union(*(each for each, _ in held)) - {self.world}
        lacking = [rank for rank, has in enumerate(steps) if not any(each >= other for each in has)]
        reason = ""
        if worlds:
            reason = f"it was kept by {sorted(worlds)[0]} processes, and there are {self.world}"
        elif lacking and len(lacking) < self.world:
            reason = f"that of process {lacking[0]} is in no host's memory"
        if reason and self.rank == 0:
            warnings.warn(f"CheckpointManager: the state in memory cannot be loaded: {reason}", stacklevel=5)

    def _gather(self, mine: Any) -> list[Any]:
        if self._group is None:
            return [mine]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine, self._group)
        return found

    def _swap(self, sends: list[tuple[int, torch.Tensor]], receives: list[tuple[int, torch.Tensor]]) -> None:
        """Send and receive at the same time, in messages of a limited size."""
        if self._group is None:
            return
        works = []
        for call, each in ((dist.isend, sends), (dist.irecv, receives)):
            for rank, tensor in each:
                at = dist.get_global_rank(self._group, rank)
                works += [call(piece, at, self._group) for piece in tensor.split(_SENT) if piece.numel()]
        for work in works:
            if work is not None:  # of a process outside of the group
                work.wait()


def holders_of(hosts: Sequence[object]) -> list[int | None]:
    """Return for each process the one on the next host that holds a copy of its state; `None` if there is one host.

    >>> from torch_xla.experimental.distributed_checkpoint._memory import holders_of
    >>> holders_of(["a", "a", "b", "b"]), holders_of(["a", "a"])
    ([2, 3, 0, 1], [None, None])
    """
    places: dict[object, list[int]] = {}
    for rank, host in enumerate(hosts):
        places.setdefault(host, []).append(rank)
    order = list(places)
    found: list[int | None] = [None] * len(hosts)
    for number, host in enumerate(order) if len(order) > 1 else ():
        there = places[order[(number + 1) % len(order)]]
        for index, rank in enumerate(places[host]):
            found[rank] = there[index % len(there)]
    return found


def _parts_in(head: Head, data: torch.Tensor, name: str) -> dict[tuple[int, ...], torch.Tensor]:
    """Return the parts of a tensor that are in the data of a slot."""
    kept = head.tensors[name]
    return {begin: tensor_at(data, head.at[name, begin], size, kept.dtype) for begin, size in kept.parts.items()}


def _described(tensor: torch.Tensor, parts: dict[tuple[int, ...], tuple[int, ...]]) -> Kept:
    mesh = f"{tensor.placements} {tensor.device_mesh}" if isinstance(tensor, DTensor) else ""
    return Kept(tuple(tensor.shape), tensor.dtype, mesh, parts)


def _misfit(kept: Mapping[str, Kept], state_dict: Mapping[str, Any]) -> str:
    """Return why what is kept does not fit the tensors of a state dict; an empty text if it does."""
    flat, _ = flatten_state_dict(dict(state_dict))
    for name, tensor in flat.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if name not in kept:
            return f"it has no {name!r}"
        if kept[name] != _described(tensor, _own(tensor).places()):
            return f"{name!r} has another shape, dtype or sharding now"
    return ""


def _room(slot: Slot, size: int) -> tuple[torch.Tensor, bool]:
    """Return memory for a copy that comes, and whether it is that of a slot: the sender sends it in any case."""
    try:
        return slot.begin(size), True
    except OSError as error:
        slot.drop()
        warnings.warn(f"CheckpointManager: no memory for {size / 1e9:.3g} GB of another host: {error}", stacklevel=2)
        return torch.empty(size, dtype=torch.uint8), False
