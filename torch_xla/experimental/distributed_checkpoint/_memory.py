"""Checkpoints in the memory of hosts: each process keeps the state that it has, and another host has a copy of it.

The files are in shared memory, which outlives the processes that `torchrun` starts again. Of each process there are two
slots: the last whole state, and the one that is being written. Hosts exchange copies through the process group of the
manager. A process that has lost its state maps the file of its copy where that is in reach, and gets it from the other
host otherwise.
"""

import hashlib
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..._engine import metrics
from ._copies import copy_all, places_of, room
from ._helpers import _CpuShards, _is_on_xla, _load, _own, flatten_state_dict, set_element, unflatten_state_dict
from ._hosts import Home, holders_among, home_of
from ._keeper import folder_of_job, start_again
from ._messages import Messages
from ._slots import Head, Kept, Slot, Sum, array_at, head_of, sum_of, tensor_at


class Copied(NamedTuple):
    """A state in a slot that is not valid yet: its head lacks the checksum."""

    slot: Slot
    head: Head
    to_save: frozenset[tuple[str, tuple[int, ...]]]  # the parts which this process writes to a path
    paths: Any  # of the names


class Held(NamedTuple):
    """The states that a process finds in the memory of its host, and the processes whose memory it can read."""

    worlds: set[int]  # how many processes the programs of the states had
    sizes: dict[int, dict[int, tuple[int, int]]]  # by process of this program and step: the bytes of head and data
    reached: set[int]

    def steps(self, rank: int) -> set[int]:
        """Return the steps whose state of a process is there."""
        return set(self.sizes.get(rank, ()))


class Memory:
    """The states in the memory of the hosts of a job."""

    def __init__(self, path: str, every: int, group: dist.ProcessGroup | None) -> None:
        self._every, self._messages = every, Messages(group)
        self.rank, self.world = self._messages.rank, self._messages.world
        self.folder = folder_of_job() / hashlib.sha256(path.encode()).hexdigest()[:16]
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._homes: list[Home] = self._messages.gather(home_of(self.folder))
        self._holders = holders_among(self._homes)
        self._written = [each for each in range(self.world) if each == self.rank or self._holders[each] == self.rank]
        self._slots = {rank: _slots_in(self.folder, rank) for rank in self._written}
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
        begins, size = places_of(part.array.nbytes for part in every.values())
        at = dict(zip(every, begins, strict=True))
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
        to = [array_at(memory, at[key], part.array.shape, tensors[key[0]].dtype) for key, part in every.items()]
        copy_all([(each, part.array) for each, part in zip(to, every.values(), strict=True)])
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
        self._messages.begin_barrier()()  # a process writes over a state when all have the next

    def _exchange(self, head: bytes, data: torch.Tensor) -> None:
        """Send a state to the process that holds its copy, and write the copies of other processes."""
        to, sources = self._holders[self.rank], [each for each in self._written if each != self.rank]
        sizes = {each: torch.zeros(2, dtype=torch.int64) for each in sources}
        ours = torch.tensor([len(head), len(data)])
        wait = self._messages.begin_to_send([] if to is None else [(to, ours)])
        self._messages.receive(list(sizes.items()))
        wait()
        heads = {each: torch.empty(int(size[0]), dtype=torch.uint8) for each, size in sizes.items()}
        slots = {each: self._oldest(each) for each in sources}
        bodies = {each: _room(slots[each], int(size[1])) for each, size in sizes.items()}
        sent = torch.frombuffer(bytearray(head or b"?"), dtype=torch.uint8)[: len(head)]
        wait = self._messages.begin_to_send([] if to is None else [(to, sent), (to, data)])
        self._messages.receive([(each, part) for each in sources for part in (heads[each], bodies[each][0])])
        wait()
        for each in sources:
            if len(heads[each]) and bodies[each][1]:
                slots[each].commit(heads[each].numpy().tobytes())

    def restore(self, state_dict: Mapping[str, Any], step: int | None, other: int) -> int | None:
        """Load the newest state that is there of all processes, and return its step.

        Returns `None` if there is none of `step`, or none as new as `other`. Warns of each that cannot be loaded.
        """
        while True:
            held: list[Held] = self._messages.gather(self._held())
            steps = [set().union(*(each.steps(rank) for each in held)) for rank in range(self.world)]
            common = {each for each in set.intersection(*steps) if each >= other and step in (None, each)}
            if not common:
                self._tell_what_lacks(held, steps, other if step is None else step)
                return None
            newest = max(common)
            sources = [self._source(rank, newest, held) for rank in range(self.world)]
            head, data, found = self._fetch(newest, sources, held)
            problem = "damaged" if head is None or found != head.sum else _misfit(head.tensors, state_dict)
            problems = self._messages.gather(problem)
            if not any(problems):
                assert head is not None
                wait = self._begin_to_forget(newest)
                self._put(head, data, state_dict)
                wait()
                self.source = "memory" if sources[self.rank] == self.rank else "peer"
                return newest
            self._tell_and_drop(newest, problems, sources)
            if any(each not in ("", "damaged") for each in problems):
                return None

    def forget(self, after: int = -1) -> None:
        """Drop what is later than a step, in all processes: the run goes on from there."""
        self._begin_to_forget(after)()

    def _begin_to_forget(self, after: int) -> Callable[[], object]:
        """Do the same; the result waits for the other processes, which may drop what this one would write."""
        self._forget(after, range(self.world))
        self._is_fresh = False
        return self._messages.begin_barrier()

    def _forget(self, after: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            # The next states of this process need its memory.
            give_up = Slot.forget if rank in self._written else Slot.drop
            for slot in self._slots_of(rank):
                head = slot.read_head()
                if head is None or head.step > after:
                    give_up(slot)

    def _slots_of(self, rank: int) -> list[Slot]:
        return self._slots.get(rank) or _slots_in(self.folder, rank)

    def _oldest(self, rank: int) -> Slot:
        heads = [(head.step if (head := slot.read_head()) else -1) for slot in self._slots[rank]]
        return self._slots[rank][heads.index(min(heads))]

    def _held(self) -> Held:
        found = Held(set(), {}, {rank for rank, home in enumerate(self._homes) if home.is_here()})
        for path in self.folder.glob("*.head"):
            head = Slot(self.folder, *map(int, path.stem.split("-"))).read_head()
            if head is not None:
                found.worlds.add(head.world)
            if head is not None and head.world == self.world:
                found.sizes.setdefault(head.rank, {})[head.step] = path.stat().st_size, head.size
        return found

    def _source(self, rank: int, step: int, held: Sequence[Held]) -> int:
        """Return the process from whose memory another one gets its state: its own, or one in its reach, or any."""
        having = [each for each, of in enumerate(held) if step in of.steps(rank)]
        return min(having, key=lambda each: (each != rank, each not in held[rank].reached))

    def _fetch(self, step: int, sources: list[int], held: Sequence[Held]) -> tuple[Head | None, torch.Tensor, int]:
        """Return head, data and the checksum of the data of this process's state, from memory or by a message."""
        by_message = [rank for rank, source in enumerate(sources) if source not in held[rank].reached | {rank}]
        asked = [rank for rank in by_message if sources[rank] == self.rank]
        wait = self._messages.begin_to_send(
            (rank, part) for rank in asked for part in self._slot_at(rank, step)[0].sent()
        )
        source = sources[self.rank]
        if self.rank in by_message:
            found = self._received(source, *held[source].sizes[self.rank][step])
        else:
            found = self._mapped(step, Path(self._homes[source].folder))
        wait()
        return found

    def _received(self, source: int, head_size: int, size: int) -> tuple[Head | None, torch.Tensor, int]:
        head, data, found = torch.empty(head_size, dtype=torch.uint8), room(size), Sum()
        self._messages.receive([(source, head)])
        self._messages.receive([(source, data)], found.add)
        return head_of(head.numpy().tobytes()), data, found.value()

    def _mapped(self, step: int, folder: Path) -> tuple[Head | None, torch.Tensor, int]:
        slot, head = self._slot_at(self.rank, step, folder)
        if not slot.data.exists():
            return None, torch.empty(0, dtype=torch.uint8), 0
        data = slot.read()
        return head, data, sum_of(data)

    def _slot_at(self, rank: int, step: int, folder: Path | None = None) -> tuple[Slot, Head]:
        """Return the slot of a step of a process in this host's memory, or in another folder."""
        for slot in self._slots_of(rank) if folder in (None, self.folder) else _slots_in(folder, rank):
            head = slot.read_head()
            if head is not None and head.step == step:
                return slot, head
        raise RuntimeError(
            f"CheckpointManager: the state of process {rank} of step {step} is gone from {folder or self.folder}"
        )

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

    def _tell_what_lacks(self, held: Sequence[Held], steps: Sequence[set[int]], other: int) -> None:
        """Warn of states in memory that cannot be used, unless the path has a newer checkpoint."""
        worlds = set().union(*(each.worlds for each in held)) - {self.world}
        lacking = [rank for rank, has in enumerate(steps) if not any(each >= other for each in has)]
        reason = ""
        if worlds:
            reason = f"it was kept by {sorted(worlds)[0]} processes, and there are {self.world}"
        elif lacking and len(lacking) < self.world:
            reason = f"that of process {lacking[0]} is in no host's memory"
        if reason and self.rank == 0:
            warnings.warn(f"CheckpointManager: the state in memory cannot be loaded: {reason}", stacklevel=5)


def _slots_in(folder: Path, rank: int) -> list[Slot]:
    return [Slot(folder, rank, number) for number in range(2)]


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
