"""The flight recorder: the last collectives of this process, in the format that PyTorch's analyser reads.

`step/collective_consistency.py` keeps the collectives of each group of processes. They become entries like those of
PyTorch's recorder, with a state: "scheduled" (this process waits for the others to come to it), "started" (its program
was given to the device), "completed" (the device has finished that program). Nothing is added to a step.

A dump is written when a process declares a fault (a timeout, a difference, the end of a process), at SIGQUIT, and on
demand. It is a pickle of plain values.
"""

import logging
import os
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

from ... import config
from ...atomic import lock
from ...ir.call_plan import Plan
from ...ir.value_spec import Spec
from ...metrics.user_lines import Line
from ...processes import heartbeats, identity
from ...runtime import platform
from ...step.collective_consistency import Started, parts_of
from ...step.collective_consistency import recorded as recorded_collectives
from ...step.in_flight import by_target as flights
from ...step.in_flight import still_there

logger = logging.getLogger("torch_xla.flight_recorder")

# Number of the latest collectives in a dump.
MOST = 1000
# The format's version: that of PyTorch 2.11 to 2.15.
_VERSION = "2.10"

# The analyser knows the libraries and the collectives of PyTorch by name.
_LIBRARIES = {"cpu": "gloo", "cuda": "nccl", "gpu": "nccl"}
_NAMES = {
    "xla::all_reduce": "all_reduce",
    "xla::all_gather": "all_gather",
    "xla::reduce_scatter": "reduce_scatter",
    "xla::all_to_all": "all_to_all",
    "xla::collective_permute": "all_to_all",
    "xla::collective_broadcast": "broadcast",
}
_DTYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
}

_writing = lock()


def record() -> dict[str, Any]:
    """Return the last collectives of this process, as PyTorch's recorder would."""
    entries: list[dict[str, Any]] = []
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(identity.process_count())])}}
    status: dict[str, dict[str, int]] = {}
    unfinished = _unfinished()
    for name, started, coming, end in recorded_collectives():
        members = next(each.part.group for each in [*started, *coming])
        group = "0" if len(members) == identity.process_count() else name
        description = "default_pg" if group == "0" else f"processes {name}"
        groups[group] = {"name": group, "desc": description, "ranks": str(list(members))}
        about = {"process_group": (group, description), "pg_id": len(groups) - 1}
        left = dict(unfinished)
        states = []
        for each in reversed(started):  # the programs that run are the last ones
            key = id(each.part)
            states.append("started" if left.get(key, 0) > 0 else "completed")
            left[key] = left.get(key, 0) - 1
        found = [*zip(started, reversed(states), strict=True), *((each, "scheduled") for each in coming)]
        for each, state in found:
            entries += [about | entry for entry in _entries(each, state)]
        numbers = {
            state: max((e.begin + len(e.part.places) for e, s in found if s == state), default=0) for _, state in found
        }
        status[str(about["pg_id"])] = {
            "last_enqueued_collective": max(numbers.values(), default=-1),
            "last_started_collective": end,
            "last_completed_collective": numbers.get("completed", -1),
        }
    entries.sort(key=lambda entry: entry["record_id"])
    return {"version": _VERSION, "pg_config": groups, "pg_status": status, "entries": entries[-MOST:]}


def _unfinished() -> dict[int, int]:
    """Return how many runs of each program are not known to have ended, by the identity of its part in each group."""
    found: dict[int, int] = {}
    for flight in list(flights.values()):
        for _, ends, program, _, _ in list(flight.started):
            try:
                has_ended = bool(ends) and all(end.is_ready() for end in still_there(ends))
            except RuntimeError:  # it failed
                has_ended = False
            if not has_ended:
                for part in parts_of(program):
                    found[id(part)] = found.get(id(part), 0) + 1
    return found


def _entries(started: Started, state: str) -> list[dict[str, object]]:
    lines = started.source_lines()
    found = []
    for offset, place in enumerate(started.part.places):
        plan = started.part.plans[offset]
        line = lines[place] if place < len(lines) else None
        found.append(
            {
                "frames": [_frame(each) for each in dict.fromkeys((line, started.line)) if each is not None],
                "record_id": started.record + offset,
                "collective_seq_id": started.begin + offset + 1,
                "p2p_seq_id": 0,
                "op_id": started.record + offset + 1,
                "is_p2p": False,
                "time_created_ns": started.time,
                "time_discovered_started_ns": started.time if state != "scheduled" else None,
                "time_discovered_completed_ns": None,
                "state": state,
                "retired": state == "completed",
                "timeout_ms": 1000 * config.collective_seconds(),
                "thread_name": "python",
                "thread_id": "0",
                **_of_plan(plan, started.part.collectives[offset]),
            }
        )
    return found


def _of_plan(plan: Plan | None, words: str) -> dict[str, object]:
    library = _LIBRARIES.get(platform.local_devices()[0].platform, "xccl")
    if plan is None:  # a program that XLA divides over the mesh: all must run it, and it is compared as a whole
        named = {"profiling_name": f"{library}:barrier {words.rpartition('(')[2].rstrip(')')}"}
        return named | {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}
    return {
        "profiling_name": f"{library}:{_NAMES.get(str(plan.op), 'barrier')}",
        "input_sizes": [list(spec.size) for spec in plan.operands],
        "input_dtypes": [_dtype(spec) for spec in plan.operands],
        "output_sizes": [list(spec.size) for spec in plan.outputs],
        "output_dtypes": [_dtype(spec) for spec in plan.outputs],
    }


def _dtype(spec: Spec) -> str:
    return _DTYPES.get(spec.dtype, str(spec.dtype).removeprefix("torch."))


def _frame(line: Line) -> dict[str, object]:
    file, number, function = line
    return {"name": function, "filename": file, "line": number}


def default_prefix() -> str:
    """Return the path of the dumps, without the number of the process: PyTorch's setting, or a folder of this user."""
    named = config.flight_recorder_file()
    if named:
        return named
    folder = Path(tempfile.gettempdir()) / f"torch_xla_flight_recorder_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TORCH_FR_DUMP_TEMP_FILE to a path of yours")
    return str(folder / "rank_")


def dump(prefix: str | None = None) -> str:
    """Write the record to the file `prefix` + the number of this process, and return its path."""
    path = f"{default_prefix() if prefix is None else prefix}{identity.process_index()}"
    found = pickle.dumps(record())
    with _writing:
        aside = f"{path}.partial"
        with open(aside, "wb") as file:
            file.write(found)
        os.replace(aside, path)
    return path


def _dump_for(why: str) -> None:
    try:
        logger.warning("The last collectives of process %d (%s) are in %s", identity.process_index(), why, dump())
    except Exception:  # what asked for it goes on
        logger.warning("The last collectives could not be written", exc_info=True)


def _at_fault(watch: heartbeats.Watch, letter: dict[str, object]) -> None:
    _dump_for("a fault was declared")


def _at_signal(watch: heartbeats.Watch, letter: dict[str, object]) -> None:
    # In a thread: the signal may have come while this thread holds a lock that the dump takes.
    threading.Thread(target=_dump_for, args=("SIGQUIT",), name="torch_xla-flight-recorder", daemon=True).start()


heartbeats.handlers["faulted"] = _at_fault
heartbeats.handlers["quit"] = _at_signal
