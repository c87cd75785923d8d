"""The actions of the threads: each adds one to every element of some of the shared tensors, or reads them.

Whatever the order of the threads, each element is incremented once for each of its actions, a tensor that is always
written as a whole has one number in all elements, and no reader sees a number decrease.
"""

import faulthandler
import gc
import io
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torch_xla
from torch_xla.experimental import eager_mode_context

# The longest that threads may take for one seed, whatever else the machine does.
_LIMIT = 300.0
_INTERVALS = (1e-6, 1e-5, 1e-4, 5e-3)
ACTIONS = 25


class Wrong(Exception):
    """A tensor shows what no order of the actions could have left."""


class Shared:
    """Tensors that all threads write to, and functions that do so."""

    def __init__(self) -> None:
        self.whole = [
            torch.zeros(4).to("xla"),
            torch.zeros(2, 3).to("xla"),
            torch.zeros(5, dtype=torch.int64).to("xla"),
        ]
        self.parts = torch.zeros(4, 6).to("xla")  # written by parts
        self.one = torch.ones(()).to("xla")
        first, second, third = self.whole
        one = self.one

        def raise_first() -> None:
            first.add_(one)

        def raise_two() -> Tensor:
            first.add_(one)
            second.add_(1)
            return first.sum()

        def raise_all(by: Tensor) -> Tensor:
            for tensor in self.whole:
                tensor.add_(1)
            self.parts[:2].add_(by)
            self.parts[2:].add_(by)
            return third.sum()

        self.functions: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {}
        ways: dict[str, Callable[[Any], Any]] = {
            "plain": torch_xla.compile,
            "replay": lambda function: torch_xla.compile(function, replay=True),
            "region": lambda function: torch_xla.compile(function, replay=False),
            "openxla": lambda function: torch.compile(function, backend="openxla"),
        }
        for name, way in ways.items():
            compiled = way(raise_all)
            self.functions[f"{name} first"] = way(raise_first), (1, 0, 0, 0)
            self.functions[f"{name} two"] = way(raise_two), (1, 1, 0, 0)
            self.functions[f"{name} all"] = (lambda compiled=compiled: compiled(one)), (1, 1, 1, 1)
        for call, _ in self.functions.values():  # one after the other: Dynamo compiles under a lock of its own
            for _ in range(6):
                call()
        torch_xla.sync(wait=True)
        self.start = [int(tensor.flatten()[0]) for tensor in (*self.whole, self.parts)]
        self.left: list[list[int]] = []  # how often each finalizer has written

    def check(self, added: list[int]) -> None:
        """Raises `Wrong` unless each element was raised as often as that."""
        for tensor, start, count in zip((*self.whole, self.parts), self.start, added, strict=True):
            found = set(tensor.flatten().tolist())
            if found != {start + count}:
                raise Wrong(f"{sorted(found)} in the place of {start + count}: of {count} updates some are lost")


class Reader:
    """One thread's looks at the tensors."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._seen = [float("-inf")] * len(shared.whole)

    def look(self, index: int, numbers: list[Any]) -> None:
        """Raises `Wrong` if a tensor shows two numbers, or a smaller one than before."""
        if len(set(numbers)) != 1 or numbers[0] < self._seen[index]:
            raise Wrong(f"a reader has seen {numbers} behind {self._seen[index]}")
        self._seen[index] = numbers[0]

    def read(self, index: int) -> None:
        """Reads all elements."""
        self.look(index, self._shared.whole[index].flatten().tolist())

    def clone(self, index: int) -> None:
        """Reads a copy that is made on the device."""
        self.look(index, (self._shared.whole[index].clone() * 1).cpu().flatten().tolist())

    def save(self, index: int) -> None:
        """Saves all tensors and reads the file."""
        file = io.BytesIO()
        torch.save(dict(enumerate(self._shared.whole)), file)
        file.seek(0)
        for place, tensor in torch.load(file, map_location="cpu").items():
            self.look(place, tensor.flatten().tolist())


class _Finalizer:
    """Garbage whose finalizer writes; in a cycle, so that it is collected in the middle of something."""

    def __init__(self, tensor: Tensor, added: list[int]) -> None:
        self._tensor, self._added, self._itself = tensor, added, self

    def __del__(self) -> None:
        self._tensor.add_(1)
        self._added[0] += 1  # of a list that its thread alone has: it may run in another


def actions_of(shared: Shared, reader: Reader) -> dict[str, tuple[Callable[[], Any], Any]]:
    """By name: what a thread can do, and by how much it raises each of the tensors."""
    first, second, third = shared.whole
    halves = [shared.parts[:, :2], shared.parts[:, 2:]]

    def add_by_halves() -> None:
        for half in halves:
            half.add_(1)

    def leave_garbage() -> None:
        shared.left.append([0])
        _Finalizer(first, shared.left[-1])

    nothing = (0, 0, 0, 0)
    return {
        **shared.functions,
        "add_": (lambda: first.add_(shared.one), (1, 0, 0, 0)),
        "add_ integers": (lambda: third.add_(1), (0, 0, 1, 0)),
        "sub_ of the negative": (lambda: second.sub_(-1), (0, 1, 0, 0)),
        "parts": (add_by_halves, (0, 0, 0, 1)),
        "foreach": (lambda: torch._foreach_add_([first, second], 1), (1, 1, 0, 0)),
        "foreach of parts": (lambda: torch._foreach_add_(halves, 1.0), (0, 0, 0, 1)),
        "out": (lambda: torch.add(second, 1, out=second), (0, 1, 0, 0)),
        "sync": (torch_xla.sync, nothing),
        "sync and wait": (lambda: torch_xla.sync(wait=True), nothing),
        "read": (lambda: reader.read(0), nothing),
        "read rows": (lambda: reader.read(1), nothing),
        "read integers": (lambda: reader.read(2), nothing),
        "clone": (lambda: reader.clone(0), nothing),
        "save": (lambda: reader.save(0), nothing),
        "collect": (gc.collect, nothing),
        "leave garbage": (leave_garbage, nothing),
    }


def run(seed: int, shared: Shared) -> int:
    """Has threads do what `seed` says; how much they did. Raises what was wrong."""
    chance = random.Random(seed)
    count = chance.randint(2, 4)
    favourite = chance.sample(sorted(shared.functions), 2)
    added = [[0] * 4 for _ in range(count)]
    finalized = sum(each[0] for each in shared.left)
    errors: list[BaseException] = []
    begin = threading.Barrier(count)

    def work(number: int) -> None:
        mine, reader = random.Random(1000 * seed + number), Reader(shared)
        actions = actions_of(shared, reader)
        try:
            begin.wait()
            for _ in range(ACTIONS):
                name = mine.choice(favourite) if mine.random() < 0.5 else mine.choice(sorted(actions))
                act, raises = actions[name]
                act()
                added[number] = [a + b for a, b in zip(added[number], raises, strict=True)]
            torch_xla.sync()
        except BaseException as error:
            errors.append(error)

    is_eager, interval = chance.random() < 0.25, sys.getswitchinterval()
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    with eager_mode_context(is_eager):
        sys.setswitchinterval(chance.choice(_INTERVALS))
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_LIMIT)
        finally:
            sys.setswitchinterval(interval)
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()
        raise Wrong("threads wait for each other")
    if errors:
        raise errors[0]
    gc.collect()
    total = [sum(each) for each in zip(*added, strict=True)]
    # A finalizer of an earlier seed may have run in this one: `gc.collect` does nothing while another thread collects.
    total[0] += sum(each[0] for each in shared.left) - finalized
    shared.check(total)
    shared.start = [start + count for start, count in zip(shared.start, total, strict=True)]
    return count * ACTIONS
