"""Find or compile the executable for each kind of stage: in memory, on disk, or by XLA."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ... import metrics
from ...atomic import uncollected
from ...ir.sharding import ANY, Placed, Sharding
from ...ir.value_spec import sharded
from ...runtime.device_assignment import Target
from .. import jax_function
from ..disk import disk_cache
from ..jax_function import MustBake
from ..source_metadata import Origins
from ..xla_compile import compiled
from .stage_cuts import Stage
from .staged_program import Wanted

_compiled = metrics.counter("StageCompile")


def fill(wanted: Sequence[Wanted], stages: Sequence[Stage], origins: Origins, keeps: bool) -> float:
    """Give each of `wanted`, one for each of `stages`, its executable; return the seconds spent on that.

    `keeps` says whether executables come from disk and go there. Raises `MustBake` with numbers of the whole graph if
    rules look at numbers that were to be arguments; then nothing was compiled.
    """
    started = time.perf_counter()
    missing = list(dict.fromkeys(each for each in wanted if each.executable is None))
    is_new = bool(missing)
    if keeps:
        missing = _not_on_disk(missing)
    if not missing:
        return time.perf_counter() - started if is_new else 0.0
    # Processes that record the same program lack the same stages, so the turn of the first is the turn of all.
    with disk_cache.turn(missing[0].key) if keeps else contextlib.nullcontext(False) as may_be_there:
        if may_be_there:
            missing = _not_on_disk(missing)
        if missing:
            _fill_from_xla(missing, stages, origins, keeps)
    return time.perf_counter() - started


def _not_on_disk(missing: Sequence[Wanted]) -> list[Wanted]:
    """Give each of `missing` its executable if it is on disk; return the others."""
    for each in missing:
        with metrics.timed("PersistentCacheLoadTime"):
            stored = disk_cache.find(each.key, _signature(each))
        if stored is not None:
            each.fill(stored.executable)
    return [each for each in missing if each.executable is None]


def _fill_from_xla(missing: Sequence[Wanted], stages: Sequence[Stage], origins: Origins, keeps: bool) -> None:
    compiling = time.perf_counter()
    lowered = _lowered(missing, stages, origins)
    with ThreadPoolExecutor(_workers(len(missing)), thread_name_prefix="compile") as pool:
        timed = list(pool.map(_compile, lowered, [each.key.target for each in missing]))
    seconds = time.perf_counter() - compiling
    for each, (executable, own) in zip(missing, timed, strict=True):
        each.fill(executable)
        _compiled.value += 1
        if keeps:
            disk_cache.keep(each.key, executable, own, _signature(each), program_seconds=seconds)


def filled_in_order(
    wanted: Sequence[Wanted],
    stages: Sequence[Stage],
    results: Mapping[int, Placed],
    origins: Origins,
    keeps: bool,
    found: list[Wanted],
) -> float:
    """Do as `fill` where values are sharded: a stage reads a value in the sharding that an earlier stage gave it.

    So stages are built in order, and equal stages share an executable if their inputs are sharded alike. `results` are
    the shardings of slots of the whole graph. New executables are appended to `found`.
    """
    placed: dict[int, Sharding | None] = {}
    seconds = 0.0
    for stage, plain in zip(stages, wanted, strict=True):
        specs = zip(stage.inputs, stage.graph.inputs, strict=True)
        inputs = tuple(sharded(spec, placed.get(slot, spec.sharding)) for slot, spec in specs)
        each = plain.divided(inputs, tuple(results.get(slot, ANY) for slot in stage.outputs))
        seconds += fill([each], [each.stage], origins, keeps)
        assert each.executable is not None
        signature = _signature(each)
        divided = jax_function.results_of(each.executable.compiled, signature, each.key.target)
        placed.update(zip(stage.outputs, divided, strict=True))
        found.append(each)
    return seconds


def _workers(stages: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(stages, cores)


@uncollected
def _compile(lowered: object, target: Target) -> tuple[object, float]:
    started = time.perf_counter()
    return compiled(lowered, target), time.perf_counter() - started


def _lowered(missing: Sequence[Wanted], stages: Sequence[Stage], origins: Origins) -> list[object]:
    found: list[Any] = []
    baked: set[int] = set()
    for each in missing:
        stage = each.stage
        try:
            own = origins.part(stage.operations)
            found.append(jax_function.lowered(stage.graph, each.key, each.numbers, own))
        except MustBake as error:
            same = [other for other in stages if other.kind == stage.kind]
            baked.update(other.numbers[place] for other in same for place in error.numbers)
    if baked:
        raise MustBake(sorted(baked))
    return found


def _signature(wanted: Wanted) -> jax_function.Signature:
    return jax_function.signature(wanted.stage.graph, wanted.key)
