"""Wrap a program in `shard_map`: each process runs it on its own arrays, with collectives between them.

For XLA it is one program over a mesh of one device of each process. An array of the program is the arrays of all
processes, one behind the other along the first dimension; what a process gives and takes is its own part, as it is.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..compat.names import jax_starters
from ..lowering.machinery import replica_axis
from ..runtime import buffers, launch_throttle
from ..runtime.device_assignment import Target

# All results but the last, which shows that the collectives are done.
_RESULTS = operator.itemgetter(slice(-1))

_WORK = 1024

# The extra input after the others, the rank of each process; `replica_axis.end` is an extra output of this kind.
_WHO = jax.ShapeDtypeStruct((1,), np.dtype(np.int32))
_DONE = jax.ShapeDtypeStruct((1,), np.dtype(np.uint32))


def of_each(
    function: Callable[..., Any],
    taken: Sequence[jax.ShapeDtypeStruct],
    given: Sequence[jax.ShapeDtypeStruct],
    target: Target,
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """Return `function`, which takes and gives arrays of one process, as one of all, and what that takes.

    Behind what the processes take it takes which process each is.
    """
    described, results = around(taken, given, target)
    scalars = [not each.shape for each in taken]

    def of_one(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *arrays, rank = arguments
        # A scalar cannot be concatenated over processes. It is declared equal everywhere, which it is not; XLA could
        # then remove a collective, so the collective reads an opaque copy instead.
        differ = [
            jnp.where(rank[0] < 0, jnp.zeros_like(x), x) if s else x for x, s in zip(arrays, scalars, strict=True)
        ]
        replica_axis.begin(_worth_a_thread(rank) if target.is_host else rank)
        return (*function(*differ), replica_axis.end())

    into, out = (tuple(each.sharding.spec for each in values) for values in (described, results))
    return jax.shard_map(of_one, mesh=target.mesh, in_specs=into, out_specs=out, check_vma=False), described


def around(
    taken: Sequence[jax.ShapeDtypeStruct], given: Sequence[jax.ShapeDtypeStruct], target: Target
) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct]]:
    """Return inputs and outputs of the common program, where each process has these."""
    return [_of_all(each, target) for each in (*taken, _WHO)], [_of_all(each, target) for each in (*given, _DONE)]


def _of_all(each: jax.ShapeDtypeStruct, target: Target) -> jax.ShapeDtypeStruct:
    assert target.mesh is not None
    size, spec = (), PartitionSpec()
    if each.shape:
        size, spec = (target.replicas * each.shape[0], *each.shape[1:]), PartitionSpec(target.axis)
    return jax.ShapeDtypeStruct(size, each.dtype, sharding=NamedSharding(target.mesh, spec), weak_type=each.weak_type)


def _worth_a_thread(rank: jax.Array) -> jax.Array:
    """Return `rank` after enough work that XLA runs the program in another thread.

    XLA's CPU client runs programs of less than 1000 operations in the calling thread. A program that waits there for
    other processes could not be interrupted, and would not notice that a process is lost.
    """
    return rank + jnp.minimum(jnp.sum(jnp.arange(_WORK, dtype=rank.dtype) * rank), 0)


def starter(target: Target, compiled: object) -> jax_starters.Starter:
    """Return a function that runs a compiled program of `target` on this process's arrays."""
    if target.is_compile_only:
        return _not_run
    if target.axis is None:
        if launch_throttle.are_limited(target):
            return jax_starters.starter_in_turn(compiled, launch_throttle.last) or partial(
                map, partial(_alone, compiled)
            )
        return jax_starters.starter(compiled) or partial(map, partial(jax_starters.call_by_jax, compiled))
    on_each = jax_starters.starter_on_each(compiled)
    return lambda calls: map(_RESULTS, on_each(map(operator.concat, calls, repeat([_rank(target)]))))


def _not_run(calls: Iterable[Sequence[jax.Array]]) -> Iterator[Sequence[jax.Array]]:
    raise RuntimeError("A program that was compiled for a topology cannot run here: its devices are elsewhere.")


def _alone(compiled: object, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Run a program to its end before anything else starts, because only JAX knows when it ends."""
    results = jax_starters.call_by_jax(compiled, arrays)
    buffers.wait(results)
    return results


@functools.cache
def _rank(target: Target) -> jax.Array:
    return buffers.put(np.array([target.devices.index(target.device)], np.int32), target)
