"""Fills the templates of the vocabulary: chooses operands among the tensors so far, and arguments that mostly fit."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .vocabulary import FAMILIES, Template

DTYPES = (
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
SIZES = (
    (), (1,), (2,), (3,), (4,), (0,), (2, 3), (3, 2), (1, 3), (3, 1), (3, 3), (0, 3), (2, 0), (2, 2), (2, 3, 2),
    (2, 1, 3), (1, 2, 2), (2, 2, 3), (3, 1, 1), (2, 3, 4), (1, 2, 3, 2), (2, 2, 1, 2),
)  # fmt: skip
NUMBERS = ("2", "3", "-1", "0", "1", "True", "0.5", "2.0", "-1.5")
LARGE = {"int64": 1 << 61, "int32": 1 << 29, "int16": 1 << 13, "int8": 100, "uint8": 200}

# The number of calls of a program that no earlier program of the swarm made, and of attempts to find another call.
NEW_CALLS = 1
MOST_TRIES = 40

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_KINDS: dict[str, Callable[[Tensor], bool]] = {
    "x": lambda t: True,
    "f": lambda t: t.is_floating_point(),
    "i": lambda t: not t.is_floating_point() and not t.is_complex() and t.dtype is not torch.bool,
    "b": lambda t: t.dtype is torch.bool,
}


@dataclass(frozen=True)
class Known:
    """A tensor of the program so far. `depth`: through how many roundings its elements went; 0: exact to the bit."""

    name: str
    tensor: Tensor
    depth: int


@dataclass(frozen=True)
class Call:
    """A line of source and its operands; `target` is the name of the tensor that it writes to, if any."""

    source: str
    template: Template
    operands: tuple[Known, ...] = ()
    target: str = ""
    picky: bool = False


class Swarm:
    """The ingredients of one task's programs: a random part of the vocabulary, of the sizes and of the dtypes.

    Programs of few ingredients combine them in more ways than programs of all. Most of their calls were planned and
    traced for an earlier program of the task, so each may bring only a few that are `new`.
    """

    def __init__(self, dice: random.Random) -> None:
        self.met: set[Any] = set()
        self.dtypes = dice.sample(DTYPES, 4)
        self.sizes = dice.sample(SIZES, 6)
        self.numbers = dice.sample(NUMBERS, 3)
        self.families = list(FAMILIES)
        self.weights = [weight for weight, _ in FAMILIES.values()]
        self.templates = {
            name: dice.sample(templates, max(4, len(templates) // 6)) for name, (_, templates) in FAMILIES.items()
        }


FRESH = Template("", "fresh")
OTHER = Template("", "other")


class Writer:
    """Writes calls over the tensors `known`."""

    def __init__(self, dice: random.Random, swarm: Swarm) -> None:
        self.dice = dice
        self.swarm = swarm
        self.known: list[Known] = []
        self.new = NEW_CALLS
        self.tries = 0

    def is_too_new(self, call: Call) -> bool:
        """Whether no earlier program made such a call on such tensors, and enough new ones were made in this one."""
        key = self.key(call)
        self.tries += 1
        return key not in self.swarm.met and self.new <= 0 and self.tries < MOST_TRIES

    def take(self, call: Call) -> None:
        """Notes that a call became part of a program."""
        key = self.key(call)
        self.new -= key not in self.swarm.met
        self.swarm.met.add(key)
        self.tries = 0

    def key(self, call: Call) -> Any:
        """Return a key that is equal for calls with one plan."""
        source, shapes = call.source, []
        for index, known in enumerate(call.operands):
            source = re.sub(rf"\b{known.name}\b", f"operand{index}", source)
            t = known.tensor
            shapes.append((t.shape, t.stride(), t.storage_offset(), t.dtype, t.untyped_storage().nbytes()))
        return "fresh" if call.template is FRESH else (source, *shapes)

    def call(self) -> Call | None:
        """A random call, or `None` if no operand fits."""
        if len(self.known) < 2 or self.dice.random() < 0.04:
            return self.fresh()
        if self.dice.random() < 0.05:
            return self.other()
        family = self.dice.choices(self.swarm.families, self.swarm.weights)[0]
        return self.filled(self.dice.choice(self.swarm.templates[family]))

    def fresh(self) -> Call:
        """A new tensor of small numbers, now and then with a NaN, an inf or a number near the end of its range."""
        size, dtype = self.dice.choice(self.swarm.sizes), self.dice.choice(self.swarm.dtypes)
        if self.dice.random() < 0.2:
            made = self.dice.choice((f"torch.zeros({size})", f"torch.ones({size})", f"torch.full({size}, 2)"))
            return Call(f"{made[:-1]}, dtype=torch.{dtype}, device=device)", FRESH)
        low = 0 if dtype in ("uint8", "bool") else -4
        numbers: list[str] = [
            str(self.dice.randrange(low, 2 if dtype == "bool" else 5)) for _ in range(torch.Size(size).numel())
        ]
        if numbers and self.dice.random() < 0.15:
            special = self._special(dtype)
            if special:
                numbers[self.dice.randrange(len(numbers))] = special
        text = f"torch.tensor([{', '.join(numbers)}], dtype=torch.{dtype}, device=device).reshape({size})"
        if len(size) > 1 and self.dice.random() < 0.25:
            text += ".mT.contiguous().mT"
        return Call(text, FRESH)

    def _special(self, dtype: str) -> str:
        if dtype in LARGE:
            return str(LARGE[dtype])
        if dtype == "bool":
            return ""
        return self.dice.choice(("float('nan')", "float('inf')", "-float('inf')", "-0.0", "0.5"))

    def other(self) -> Call:
        """The end of a step, a read, or a tensor that is dropped."""
        chosen = self.any(_KINDS["x"])
        assert chosen is not None
        kind = self.dice.random()
        if kind < 0.4:
            return Call("sync()", OTHER)
        if kind < 0.8 or len(self.known) < 4:
            return Call(f"read({chosen.name})", OTHER, (chosen,))
        return Call(f"del {chosen.name}", OTHER, (chosen,), chosen.name)

    def any(self, fits: Callable[[Tensor], bool]) -> Known | None:
        """A tensor that fits; the latest are chosen most."""
        fitting = [k for k in self.known if fits(k.tensor)]
        if not fitting:
            return None
        return fitting[-1 - min(int(self.dice.expovariate(0.4)), len(fitting) - 1)]

    def beside(self, x: Known) -> Known:
        """A tensor to meet `x`: mostly one that broadcasts with it."""
        fitting = self.any(lambda t: _broadcasts(t.shape, x.tensor.shape)) if self.dice.random() < 0.85 else None
        return fitting or self.any(_KINDS["x"]) or x

    def filled(self, template: Template) -> Call | None:
        """A call of `template`, or `None` if no operand fits."""
        kind = next((name for name in _PLACEHOLDER.findall(template.text) if name in ("x", "f", "i")), "x")
        x = self.any(_KINDS[kind])
        if x is None:
            return None
        operands = [x]
        arguments = Arguments(self.dice, self.swarm, x.tensor)
        chosen: dict[str, str] = {kind: x.name}
        picky = template.picky

        def fill(found: re.Match[str]) -> str:
            nonlocal picky
            name = found[1]
            if name in chosen:
                return chosen[name]
            if name in ("x", "y", "f", "i", "b"):
                other = self.beside(x) if name == "y" else self.any(_KINDS[name])
                if name == "b" and (other is None or self.dice.random() < 0.5):
                    picky = True
                    return f"({x.name} {self.dice.choice(('==', '!='))} {self.dice.choice(self.swarm.numbers)})"
                if other is None:
                    return x.name
                operands.append(other)
                chosen[name] = other.name
                return other.name
            return arguments.of(name)

        source = _PLACEHOLDER.sub(fill, template.text)
        return Call(source, template, tuple(operands), x.name if template.writes else "", picky)


def _broadcasts(a: torch.Size, b: torch.Size) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(reversed(a), reversed(b), strict=False))


class Arguments:
    """Arguments that mostly fit a call on `tensor`."""

    def __init__(self, dice: random.Random, swarm: Swarm, tensor: Tensor) -> None:
        self.dice = dice
        self.swarm = swarm
        self.tensor = tensor
        self.last_dim = 0

    def of(self, name: str) -> str:
        """The text of the argument called `name` in the templates."""
        if name in ("d", "e"):
            return str(self._dim())
        return str(getattr(self, f"_{name}")())

    def _dim(self) -> int:
        rank = max(self.tensor.dim(), 1)
        self.last_dim = self.dice.randrange(-rank, rank)
        return self.last_dim

    def _length(self) -> int:
        return self.tensor.shape[self.last_dim] if self.tensor.dim() else 1

    def _n(self) -> int:
        length = max(self._length(), 1)
        return self.dice.randrange(-length, length)

    def _w(self) -> int:
        return self.dice.randint(1, max(self._length(), 1))

    def _u(self) -> int:
        return self.dice.randint(-1, self.tensor.dim())

    def _k(self) -> int:
        return self.dice.randrange(3)

    def _step(self) -> int:
        return self.dice.choice((1, 1, 2, 3))

    def _offset(self) -> int:
        return self.dice.choice((0, 0, 1, -1))

    def _a(self) -> str:
        return self.dice.choice(self.swarm.numbers)

    def _D(self) -> str:  # noqa: N802
        return self.dice.choice(self.swarm.dtypes)

    def _S(self) -> str:  # noqa: N802
        return str(self.dice.choice(self.swarm.sizes))

    def _dims(self) -> str:
        rank = self.tensor.dim()
        return str(tuple(self.dice.sample(range(rank), self.dice.randint(0, rank))))

    def _order(self) -> str:
        return str(tuple(self.dice.sample(range(self.tensor.dim()), self.tensor.dim())))

    def _ones(self) -> str:
        return str((*self.dice.choice(((), (1,))), *(self.dice.choice((1, 1, 2)) for _ in range(self.tensor.dim()))))

    def _rows(self) -> str:
        length = max(self.tensor.shape[0] if self.tensor.dim() else 1, 1)
        rows = [self.dice.randrange(-length if self.last_dim == 0 else 0, length) for _ in range(self._w())]
        return f"torch.tensor({[r % length for r in rows]}, device=device)"

    def _places(self) -> str:
        numel = max(self.tensor.numel(), 1)
        return f"torch.tensor({[self.dice.randrange(numel) for _ in range(2)]}, device=device)"

    def _counts(self) -> str:
        return f"torch.tensor({[self.dice.randrange(3) for _ in range(self._length())]}, device=device)"

    def _indices(self) -> str:
        shape = tuple(min(n, 2) for n in self.tensor.shape)
        numbers = [self.dice.randrange(max(self._length(), 1)) for _ in range(torch.Size(shape).numel())]
        return f"torch.tensor({numbers}, device=device).reshape({shape})"

    def _shape(self) -> str:
        numel = self.tensor.numel()
        if numel == 0:
            return str(self.dice.choice(((0,), (0, 2), tuple(self.tensor.shape))))
        first = self.dice.choice([n for n in range(1, numel + 1) if numel % n == 0])
        return str(self.dice.choice(((first, -1), (first, 1, numel // first), (numel,), (1, *self.tensor.shape))))

    def _expanded(self) -> str:
        sizes = [n if n != 1 else self.dice.choice((1, 2, 3)) for n in self.tensor.shape]
        if self.dice.random() < 0.5:
            sizes = [n if self.dice.random() < 0.7 or n == 1 else -1 for n in sizes]
        return str((*self.dice.choice(((), (), (2,))), *sizes))

    def _strided(self) -> str:
        """A size and strides, and mostly an offset, inside of the storage."""
        held = self.tensor.untyped_storage().nbytes() // self.tensor.element_size()
        size = self.dice.choice(((), (1,), (2,), (2, 2), (3,), (2, 1, 2), (0, 2), (3, 2)))
        stride = tuple(self.dice.choice((1, 1, 2, 3, 0, 6)) for _ in size)
        offset = self.dice.randrange(max(held, 1))
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if last >= held and self.dice.random() < 0.95:
            offset = 0
        return f"{size}, {stride}" + (f", {offset}" if offset or self.dice.random() < 0.5 else "")

    def _index(self) -> str:
        """Slices, numbers, `None` and `...`, at most one for each dimension."""
        parts = []
        for n in self.tensor.shape[: self.dice.randint(0, self.tensor.dim())]:
            start, stop = self.dice.randint(-n, n), self.dice.choice(("", str(self.dice.randint(0, n))))
            parts.append(
                self.dice.choice(
                    (
                        ":",
                        f"{start}:{stop}",
                        f":{stop}",
                        "::2",
                        f"{start}::2",
                        str(self.dice.randrange(-n, n) if n else 0),
                    )
                )
            )
        if self.dice.random() < 0.2:
            parts.insert(self.dice.randint(0, len(parts)), "None")
        if self.dice.random() < 0.2:
            parts.insert(self.dice.choice((0, len(parts))), "...")
        return ", ".join(parts) or "..."
