"""The key of an executable: everything it depends on. Caches, comparisons and explanations use it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..ir.graph import Graph
from ..ir.sharding import Placed
from ..runtime.device_assignment import Target
from . import graph_fingerprint, output_shardings, settings_in_force
from .environment_digest import Installation, installed
from .settings_in_force import Settings


@dataclass(frozen=True)
class Key:
    """Everything that an executable depends on.

    Equal keys share one executable: in memory, among the stages of programs, and on disk, where `name` and
    `environment` identify it. The key of a program, which has executables for several numbers, has neither `arguments`
    nor `numbers`.
    """

    code: tuple[
        object, ...
    ]  # of the graph: its operations and wiring, and size, order, dtype and sharding of each input
    donated: tuple[int, ...]  # the inputs that it may write over
    results: tuple[Placed, ...]  # how its outputs are to be divided among the devices
    target: Target
    arguments: tuple[int, ...]  # the numbers that are arguments
    numbers: bytes  # all numbers, packed; zeros for the arguments
    settings: Settings
    installation: Installation

    def of_numbers(self, arguments: tuple[int, ...], numbers: bytes) -> "Key":
        """Return the key of the executable of this program that has these numbers baked in, the `arguments` left
        out.
        """
        return replace(self, arguments=arguments, numbers=numbers)

    @cached_property
    def name(self) -> str:
        """Return 32 letters that identify the computation, equal in all processes.

        Raises `Nameless` if it has no such name: see `graph_fingerprint.is_named`.
        """
        return self._hash(graph_fingerprint.text_of(self.code))

    @cached_property
    def digest(self) -> str:
        """32 letters that equal keys have in common in all processes, whatever is installed where they run.

        Unlike `name` there is one for every key. Those of two keys that call different Python may be equal.
        """
        code, around = (
            graph_fingerprint.text_of(self.code, strict=False),
            described(self.target) | self.settings.texts(),
        )
        return self._hash(f"{code}\n{around}")

    @cached_property
    def environment(self) -> dict[str, str]:
        """All that is not in the `name`, by what a user calls it and in words that another process would use too."""
        return described(self.target) | self.settings.texts() | self.installation.texts()

    def _hash(self, text: str) -> str:
        found = hashlib.sha256(f"{text}\n{self.donated} {self.arguments} {self.results}".encode())
        found.update(self.numbers)
        return found.hexdigest()[:32]


def described(target: Target) -> dict[str, str]:
    """Return a description of a target by name, equal for devices of the same kind, and in other processes."""
    mesh = target.mesh
    return {
        "platform": target.platform,
        "device": target.kind,
        "devices": f"{len(target.devices)} of {len(target.processes)} processes",
        "mesh": f"{mesh.axis_names} {mesh.devices.shape}, along {target.axis}" if mesh is not None else "",
        "places": _places(target.devices) if mesh is not None else "",
    }


def _places(devices: Sequence[Any]) -> str:
    """Return a digest of the devices' places in the network between them, if they have such places, as a TPU's do."""
    places = [(getattr(each, "slice_index", 0), each.coords) for each in devices if hasattr(each, "coords")]
    return hashlib.sha256(str(places).encode()).hexdigest()[:16] if places else ""


def key_of(graph: Graph, donated: tuple[int, ...], target: Target) -> Key:
    """Return the key of the program of `graph` under the settings in force."""
    results = results_of(graph, donated, target)
    return Key(graph.code, donated, results, target, (), b"", settings_in_force.now(), installed(target))


def results_of(graph: Graph, donated: tuple[int, ...], target: Target) -> tuple[Placed, ...]:
    """Return the required shardings of a graph's outputs on `target`; empty if nothing is divided there."""
    return tuple(output_shardings.of_outputs(graph, donated)) if target.is_spread else ()


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the differences between two environments: `["torch '2.12' → '2.13'"]`."""
    return [
        f"{name} {before.get(name)!r} → {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
