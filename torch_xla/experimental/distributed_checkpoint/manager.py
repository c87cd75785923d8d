"""Save checkpoints at some steps, keep the latest ones, and write them while training continues."""

import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ..._engine import metrics, processes
from ..._engine.processes import process_count, process_index
from ..._engine.quiet_calls import quiet
from ._copies import Room
from ._helpers import _frozen_state_dict, _sharded_cpu_state_dict
from ._memory import Copied, Memory
from ._messages import Messages
from ._places import place_at
from .planners import SPMDLoadPlanner, SPMDSavePlanner


class _Due(NamedTuple):
    """Where a step is saved."""

    path: bool
    memory: bool


class CheckpointManager:
    """Save state dicts in folders of `path`, one for each step, and load them on any mesh.

    A step is saved if `save_interval` divides its number, or if the machine announces its end by SIGTERM and
    `chkpt_on_preemption` is set. The `max_to_keep` checkpoints that were written last are kept, or all of them if it is
    0. Up to `max_pending_async` checkpoints may be written at the same time, each by `num_of_threads` threads. In a
    program of several processes every process calls the same methods with the same steps, after
    `torch.distributed.init_process_group`. The manager makes a group of its own for Gloo from `process_group`, or from
    all processes: its thread saves at any moment of the training, whose collectives come in another order in each.

    A checkpoint is written to a temporary folder, which is renamed when it is complete. A process that is killed while
    writing leaves the other checkpoints intact. `path` may be an address such as "s3://bucket/run": fsspec writes
    there, with the library for it (s3fs), and a last file says that a checkpoint is complete.

    With `memory_every`, each process also keeps its state of each such step in the memory of its host, and a process on
    another host has a copy. It is there for processes that `torchrun` starts again, and is given back when the job
    ends. `restore_latest` loads it if it is newer than what `path` has, and as many processes hold their tensors in the
    same way; it warns otherwise. A host needs memory for two states of each of its processes, and two copies.

    Steps that Orbax has written are restored as others are, if orbax-checkpoint is installed and `path` is a folder.
    With `format="orbax"` it writes such steps, which `orbax.checkpoint.CheckpointManager(path)` restores. The first of
    several processes writes, and needs memory for the whole state.

    >>> import tempfile, torch
    >>> from torch_xla.experimental.distributed_checkpoint import CheckpointManager
    >>> manager = CheckpointManager(tempfile.mkdtemp(), save_interval=10, chkpt_on_preemption=False)
    >>> state = {"w": torch.ones(2, device="xla")}
    >>> [step for step in range(30) if manager.save(step, state)], manager.all_steps()
    ([0, 10, 20], [0, 10, 20])
    >>> manager.restore(20, state)
    """

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
        memory_every: int | None = None,
        format: Literal["dcp", "orbax"] = "dcp",
    ) -> None:
        if memory_every is not None and memory_every < 1:
            raise ValueError(f"CheckpointManager(): memory_every must be at least 1; got {memory_every}")
        if save_interval < 1:
            raise ValueError(f"CheckpointManager(): save_interval must be at least 1; got {save_interval}")
        if (max_to_keep or 0) < 0 or (max_pending_async or 0) < 0:
            raise ValueError("CheckpointManager(): max_to_keep and max_pending_async must not be negative")
        if process_count() > 1 and process_group is None and not dist.is_initialized():
            raise RuntimeError(
                "CheckpointManager(): the processes of this program have no process group yet. Call "
                "torch.distributed.init_process_group('gloo') first, or give process_group=."
            )
        _check_format(format, str(path))
        self._format = format
        self.base_path = str(path) if "://" in str(path) else Path(path)
        self._place = place_at(str(path))
        self.save_interval = save_interval
        self.max_to_keep = max_to_keep or 0
        self.chkpt_on_preemption = chkpt_on_preemption
        self._most_pending = max(1, max_pending_async or 1)
        self._threads = num_of_threads or 1
        self._group = None if _is_alone() else _own_group(process_group)
        self._pending: deque[Future[None]] = deque()
        self._rooms: list[Room] = []  # those in which no state is that is still to be written
        self._worker: ThreadPoolExecutor | None = None  # one thread: the processes save in one order
        self._memory: Memory | None = None
        self._keeping: Future[None] | None = None
        self._memory_worker: ThreadPoolExecutor | None = None
        # The source of the last restored state: "memory" of this host, a "peer", "path", or "" before.
        self.restored_from = ""
        if memory_every is not None:
            self._memory = Memory(str(path), memory_every, None if _is_alone() else _own_group(process_group))
        if chkpt_on_preemption:
            processes.activate_preemption()

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save this step, or keep it in memory."""
        return any(self._due(step))

    def _due(self, step: int, force: bool | None = False) -> _Due:
        return _Due(bool(force) or self._is_for_path(step), self._memory is not None and self._memory.is_due(step))

    def _is_for_path(self, step: int) -> bool:
        if step < 0:
            raise ValueError(f"CheckpointManager: steps count from 0; got {step}")
        return step % self.save_interval == 0 or (self.chkpt_on_preemption and self.reached_preemption(step))

    def _keep(self, step: int, state_dict: dict[str, Any]) -> Copied | None:
        """Copy a state to the memory of this host; a thread sends it to another host."""
        assert self._memory is not None
        self._finish_keeping()
        copied = self._memory.copy(step, state_dict)
        if self._memory_worker is None:
            self._memory_worker = ThreadPoolExecutor(1, "memory")
        self._keeping = self._memory_worker.submit(self._memory.finish, copied)
        return copied

    def _finish_keeping(self) -> None:
        if self._keeping is not None:
            keeping, self._keeping = self._keeping, None
            keeping.result()

    def save(self, step: int, state_dict: dict[str, object], force: bool | None = False) -> bool:
        """Save a state dict if `should_save(step)` or `force`, and return whether it was saved, when it is complete."""
        due = self._due(step, force)
        with metrics.SecondsSpent(metrics.CHECKPOINT):
            kept = self._keep(step, state_dict) if due.memory else None
            if due.path:
                self._finish(0)
                self._save(step, Memory.to_save(kept, state_dict) if kept else _sharded_cpu_state_dict(state_dict))
            self._finish_keeping()
        return any(due)

    def save_async(self, step: int, state_dict: dict[str, object], force: bool | None = False) -> bool:
        """Save as `save` does, but return when all of the state is copied on the CPU; a thread writes it.

        Waits while `max_pending_async` checkpoints are being written. Raises the error of an earlier checkpoint. A step
        that is also kept in memory is copied there alone, and the thread writes that. The memory of the copy stays for
        the next save: to make its pages anew takes longer than the copy.
        """
        due = self._due(step, force)
        with metrics.SecondsSpent(metrics.CHECKPOINT):
            kept = self._keep(step, state_dict) if due.memory else None
            if due.path:
                self._finish(self._most_pending - 1)
                if self._worker is None:
                    self._worker = ThreadPoolExecutor(1, "checkpoints")
                if kept:
                    self._pending.append(self._worker.submit(self._save, step, Memory.to_save(kept, state_dict)))
                    kept.slot.reader = self._pending[-1]
                else:
                    room = self._rooms.pop() if self._rooms else Room()
                    copied = _frozen_state_dict(state_dict, room)
                    self._pending.append(self._worker.submit(self._save_from, room, step, copied))
        return any(due)

    def _save_from(self, room: Room, step: int, state_dict: Mapping[str, Any]) -> None:
        try:
            self._save(step, state_dict)
        finally:
            self._rooms.append(room)

    def restore(self, step: int, state_dict: Mapping[str, object]) -> None:
        """Load the checkpoint of a step into a state dict. Tensors are written in place and keep their sharding.

        Other values are replaced in the dict: call `load_state_dict` of the model or optimizer to use them. Raises
        `ValueError` for a step that was not saved.
        """
        self.join()
        if self._restore_memory(state_dict, step) is not None:
            return
        if step not in self.all_steps():
            raise ValueError(
                f"CheckpointManager: there is no complete checkpoint of step {step}; there are {self.all_steps()}"
            )
        self._load(step, state_dict)

    def restore_latest(self, state_dict: Mapping[str, object]) -> int | None:
        """Load the latest state with the right checksums, and return its step; None if there is none.

        It may be in memory (`memory_every`), or a checkpoint of `path`. Warns of each damaged checkpoint, which it
        leaves in its place.
        """
        self.join()
        kept = self._restore_memory(state_dict)
        if kept is not None:
            return kept
        found: list[int | None] = [None]
        if process_index() == 0:
            for step in reversed(self.all_steps()):
                if self._place.is_whole(step):
                    found = [step]
                    break
                warnings.warn(
                    f"CheckpointManager: the checkpoint of step {step} in {self.base_path} is damaged: a file is "
                    "missing, or has another checksum than when it was written",
                    stacklevel=2,
                )
        if not _is_alone():
            dist.broadcast_object_list(found, 0, self._group)
        if found[0] is not None:
            self._load(found[0], state_dict)
        return found[0]

    def _restore_memory(self, state_dict: Mapping[str, object], step: int | None = None) -> int | None:
        """Load a step from memory, or the newest unless `path` has a newer one; return it, or None."""
        if self._memory is None:
            return None
        with metrics.SecondsSpent(metrics.RECOVERY):
            latest = [max(self.all_steps(), default=-1)]
            if not _is_alone():
                dist.broadcast_object_list(latest, dist.get_process_group_ranks(self._group)[0], self._group)
            found = self._memory.restore(state_dict, step, latest[0] if step is None else step)
        self.restored_from = "" if found is None else self._memory.source
        return found

    def _load(self, step: int, state_dict: Mapping[str, object]) -> None:
        options = {"process_group": self._group, "no_dist": _is_alone()}
        with metrics.SecondsSpent(metrics.RECOVERY):
            reader = self._place.reader(step, state_dict)
            _quiet(dcp.load)(state_dict, storage_reader=reader, planner=SPMDLoadPlanner(), **options)
        if self._memory is not None:
            self._memory.forget()
        self.restored_from = "path"

    def all_steps(self) -> list[int]:
        """Return the steps whose checkpoints are complete, in order."""
        return self._place.steps()

    def join(self) -> None:
        """Wait until every checkpoint of `save_async` is complete, and raise the error of a failed one."""
        with metrics.SecondsSpent(metrics.CHECKPOINT):
            self._finish(0)
            self._finish_keeping()

    def _finish(self, left: int) -> None:
        """Wait until no more than `left` checkpoints are being written."""
        while len(self._pending) > left:
            self._pending.popleft().result()

    def reached_preemption(self, step: int) -> bool:
        """Return whether the machine of this or another process of the program has announced its end.

        All processes agree on the first step for which it returns true, so every process must call this with the same
        steps. SIGTERM does not end a process then. Raises `RuntimeError` if `chkpt_on_preemption` is not set.
        """
        return processes.is_preemption_reached(step)

    def _save(self, step: int, state_dict: Mapping[str, object]) -> None:
        """Write a state dict whose tensors are on the CPU, and remove checkpoints beyond the limit."""
        if process_index() == 0:
            self._place.clear(step)
        self._meet()
        if self._format == "orbax":
            self._place.write_orbax(step, state_dict, Messages(self._group))
        else:
            options = {"process_group": self._group, "no_dist": _is_alone(), "planner": SPMDSavePlanner()}
            save = _quiet(dcp.save)
            self._place.write(step, self._threads, lambda writer: save(state_dict, storage_writer=writer, **options))
        self._meet()  # each process has written its checksums
        if process_index() == 0:
            self._place.complete(step)
            for old in self._place.by_age()[: -self.max_to_keep] if self.max_to_keep else []:
                self._place.remove(old)
        self._meet()

    def _meet(self) -> None:
        if not _is_alone():
            dist.barrier(self._group)


def _own_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a new group of the same processes, whose collectives no other code orders."""
    return dist.new_group(dist.get_process_group_ranks(group), backend="gloo", use_local_synchronization=True)


# PyTorch warns of every checkpoint of a program of one process.
_quiet = quiet(message="torch.distributed is disabled")


def _check_format(format: str, path: str) -> None:
    if format not in ("dcp", "orbax"):
        raise ValueError(f"CheckpointManager(): format is 'dcp' or 'orbax'; got {format!r}")
    if format == "orbax" and "://" in path:
        raise NotImplementedError(
            f"CheckpointManager(format='orbax') writes to a folder, and the path is {path!r}. Save without format=, "
            "which any mesh and process loads."
        )


def _is_alone() -> bool:
    return process_count() == 1
