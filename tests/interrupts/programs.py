"""Programs to interrupt, whose tensors show the state of the program.

Each operation of a program increments a counter, so that the tensors show which operations were done. An operation is
done or it is not; so after any interrupt the tensors have a state that is possible between two operations.
"""

import copy
import gc
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine.compile.stages import stage_cuts
from torch_xla._engine.compiled.replay import small_tensor_packing
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode


class Wrong(Exception):
    """Tensors hold what no program of PyTorch could have left."""


class Counting:
    """Parameters that count: each operation adds one to all elements of a tensor, or to all of several tensors."""

    def __init__(self) -> None:
        self.single = torch.zeros(5).to("xla")
        self.together = [torch.zeros(3 + n).to("xla") for n in range(4)]
        self.whole = torch.zeros(4, 6).to("xla")
        self.parts = [self.whole[:2], self.whole[2:, ::2], self.whole[2:, 1::2]]
        self._behind = 0.0, 0.0  # by how much the second and the third are behind the one before

    def step(self) -> None:
        """Four operations; the second and the third write several tensors each."""
        self.single.add_(1)
        torch._foreach_add_(self.together, 1)
        torch._foreach_add_(self.parts, 1)
        self.single = self.single + 0
        torch_xla.sync()

    def check(self) -> None:
        """Raises `Wrong` if the tensors show half of an operation."""
        single = self.single.tolist()
        together = {element for tensor in self.together for element in tensor.tolist()}
        whole = {element for row in self.whole.tolist() for element in row}
        counts = single[0], *together, *whole
        if len(set(single)) != 1 or len(together) != 1 or len(whole) != 1:
            raise Wrong(f"half of an operation: {single}, {together}, {whole}")
        behind = counts[0] - counts[1], counts[1] - counts[2]
        before, self._behind = self._behind, behind
        # Of what was interrupted since the last look, one operation was the last.
        lost = behind[0] - before[0], behind[1] - before[1]
        if lost not in ((0, 0), (1, 0), (0, 1)) or counts[0] != int(counts[0]):
            raise Wrong(f"operations left out, or done twice: {counts}, and before they were {before} behind")


class Training:
    """A model whose loss is the sum of its parameters: each update takes one from each, all at the same time."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to("xla")
        for parameter in self.model.parameters():
            nn.init.zeros_(parameter)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, foreach=True)

    def step(self) -> Tensor:
        """A step of training, ended by a sync."""
        loss = self.update()
        torch_xla.sync()
        return loss

    def update(self) -> Tensor:
        """A step of training."""
        self.optimizer.zero_grad()
        loss = sum((parameter.sum() for parameter in self.model.parameters()), torch.zeros((), device="xla"))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def check(self) -> None:
        """Raises `Wrong` if some parameters were updated and others were not."""
        found = {element for parameter in self.model.parameters() for element in parameter.detach().flatten().tolist()}
        if len(found) != 1 or (number := found.pop()) > 0 or number != int(number):
            raise Wrong(f"parameters are not of one step: {found}")
        for parameter in self.model.parameters():
            if parameter.grad is not None and set(parameter.grad.flatten().tolist()) - {0.0, 1.0, 2.0}:
                raise Wrong(f"a gradient that no step makes: {parameter.grad}")


class Replayed(Training):
    """The same by replay."""

    def __init__(self) -> None:
        super().__init__()
        self._replayed = torch_xla.compile(self.update, replay=True)

    def step(self) -> Tensor:
        """A step, replayed from the fourth on."""
        loss: Tensor = self._replayed()
        return loss


class Region(Training):
    """The same in regions of one graph."""

    def __init__(self) -> None:
        super().__init__()
        self._compiled = torch_xla.compile(self.update, full_graph=True)

    def step(self) -> Tensor:
        """A step as one region."""
        loss: Tensor = self._compiled()
        return loss


class Eager(Counting):
    """Every operation runs when it is called."""

    def step(self) -> None:
        """The same operations, in eager mode."""
        with eager_mode_context(True):
            super().step()

    def check(self) -> None:
        """Raises `Wrong` if the mode has stayed on, too."""
        super().check()
        _recorded_again()


class EagerTraining(Training):
    """Training in eager mode."""

    def step(self) -> Tensor:
        """A step, operation by operation."""
        with eager_mode_context(True):
            return super().step()

    def check(self) -> None:
        """Raises `Wrong` if the mode has stayed on, too."""
        super().check()
        _recorded_again()


def _recorded_again() -> None:
    if is_eager_mode():
        gc.collect()  # where the interrupt came in front of the block's end, that is when its frame goes
    if is_eager_mode():
        eager_mode(False)
        raise Wrong("eager mode has stayed on")


class Compiling(Counting):
    """A program that is compiled at every step: nothing is found that an earlier one has left."""

    def step(self) -> None:
        """The same, when all programs were forgotten."""
        clear_schedules()
        super().step()


class Reading(Training):
    """Values are read in the middle of a step."""

    def step(self) -> Tensor:
        """A step that prints its loss before it updates."""
        self.optimizer.zero_grad()
        loss = sum((parameter.sum() for parameter in self.model.parameters()), torch.zeros((), device="xla"))
        loss.item()
        loss.backward()
        self.optimizer.step()
        torch_xla.sync()
        return loss


class Dynamo(Training):
    """Forward and backward by `torch.compile`."""

    def __init__(self) -> None:
        super().__init__()
        self._forward = torch.compile(self._loss, backend="openxla")

    def _loss(self) -> Tensor:
        return sum((parameter.sum() for parameter in self.model.parameters()), torch.zeros((), device="xla"))

    def step(self) -> Tensor:
        """A step whose forward pass is compiled."""
        self.optimizer.zero_grad()
        loss = self._forward()
        loss.backward()
        self.optimizer.step()
        torch_xla.sync()
        return loss


class AcrossOrdinals(Training):
    """A model with a part on each ordinal."""

    def __init__(self) -> None:
        super().__init__()
        self._replicas = [copy.deepcopy(self.model).to(ordinal) for ordinal in torch_xla.devices()]
        self._optimizers = [torch.optim.SGD(each.parameters(), lr=1.0, foreach=True) for each in self._replicas]

    def step(self) -> Tensor:
        """A step whose gradients cross from the first ordinal to all others."""
        total = torch.zeros((), device="xla")
        for optimizer, replica in zip(self._optimizers, self._replicas, strict=True):
            optimizer.zero_grad()
            total = total + sum(parameter.sum() for parameter in replica.parameters()).to("xla")
        total.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        torch_xla.sync()
        return total.detach()

    def check(self) -> None:
        """Raises `Wrong` if an ordinal shows half of an operation."""
        for replica in self._replicas:
            self.model = replica
            super().check()


class Packed(Replayed):
    """A replay of a model with many small parameters, which are in packs after every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleList(nn.Linear(1, 1) for _ in range(40)).to("xla")
        for parameter in self.model.parameters():
            nn.init.zeros_(parameter)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, foreach=True)

    @staticmethod
    @contextmanager
    def around() -> Iterator[None]:
        """Pack at once, and again after every read."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_tensor_packing, "_AFTER", 1)
            patch.setattr(small_tensor_packing, "_WORTH", 0)
            yield
        assert counters.value_of("PackedStep"), "nothing was packed"


class Staged(Training):
    """A model of layers whose step is a program of several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).to("xla")
        for parameter in self.model.parameters():
            nn.init.zeros_(parameter)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, foreach=True)

    def update(self) -> Tensor:
        """A step through layers that change nothing."""
        self.optimizer.zero_grad()
        loss = hidden = torch.zeros(4, device="xla")
        for layer in self.model:
            hidden = self.through(torch.tanh(layer(hidden) * 0))
            loss = loss + hidden
        total = loss.sum() + sum(parameter.sum() for parameter in self.model.parameters())
        total.backward()
        self.optimizer.step()
        return total.detach()

    def through(self, hidden: Tensor) -> Tensor:
        """Run the additional work of every layer."""
        return hidden

    @staticmethod
    @contextmanager
    def around() -> Iterator[None]:
        """Makes stages of small programs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
            patch.setattr(stage_cuts, "LEAST_BYTES", 1)
            patch.setenv("XLA_STAGE_OPERATIONS", "20")
            clear_schedules()
            yield
        assert counters.value_of("StagedProgram"), "nothing was staged"
        clear_schedules()


class StagedWithCallbacks(Staged):
    """The same; each layer calls a function of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.called = 0

    def through(self, hidden: Tensor) -> Tensor:
        """Tells the host."""
        found: Tensor = call_jax(self._told, (hidden,))
        return found

    def _told(self, hidden: Any) -> Any:
        jax.debug.callback(self._note, hidden[0])
        return hidden

    def _note(self, _: Any) -> None:
        self.called += 1

    @staticmethod
    def around() -> AbstractContextManager[None]:
        """A program with callbacks is compiled whole."""
        return nullcontext()


class Together(Counting):
    """Counters that are summed over all processes, here one: a collective waits for the previous one."""

    def step(self) -> None:
        """The same, with sums that change nothing."""
        xm.all_reduce(xm.REDUCE_SUM, [self.single])
        xm.all_reduce(xm.REDUCE_SUM, self.together)
        super().step()


def _work(asked: "queue.SimpleQueue[threading.Event | None | bool]", other: Tensor) -> None:
    while (answer := asked.get()) is not False:
        if isinstance(answer, threading.Event):
            answer.set()
            continue
        for _ in range(3):
            torch._foreach_add_([other[:3], other[3:]], 1)
            torch_xla.sync()


class BesideAThread(Training):
    """Training while another thread records and runs what is its own."""

    _started: list[tuple["queue.SimpleQueue[threading.Event | None | bool]", threading.Thread]] = []

    @classmethod
    @contextmanager
    def around(cls) -> Iterator[None]:
        """Ends the threads."""
        try:
            yield
        finally:
            while cls._started:
                asked, thread = cls._started.pop()
                asked.put(False)
                thread.join()

    def __init__(self) -> None:
        super().__init__()
        self.other = torch.zeros(6).to("xla")
        self._asked: queue.SimpleQueue[threading.Event | None | bool] = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._asked, self.other), daemon=True)
        thread.start()
        self._started.append((self._asked, thread))

    def step(self) -> Tensor:
        """A step, while the thread works."""
        self._asked.put(None)
        return super().step()

    def check(self) -> None:
        """Raises `Wrong` if the thread or the training has lost something."""
        done = threading.Event()
        self._asked.put(done)
        done.wait()
        found = set(self.other.tolist())
        if len(found) != 1 or (number := found.pop()) != int(number):
            raise Wrong(f"the other thread's tensor: {self.other}")
        super().check()


PROGRAMS: dict[str, Callable[[], Counting | Training]] = {
    "recording": Counting,
    "training": Training,
    "reading": Reading,
    "compiling": Compiling,
    "replay": Replayed,
    "region": Region,
    "eager": Eager,
    "eager training": EagerTraining,
    "torch.compile": Dynamo,
    "ordinals": AcrossOrdinals,
    "packed replay": Packed,
    "stages": Staged,
    "callbacks": StagedWithCallbacks,
    "collectives": Together,
    "threads": BesideAThread,
}
