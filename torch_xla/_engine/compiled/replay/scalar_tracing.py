"""Trace the scalars that a step computes on the host, such as step counts and learning rates.

PyTorch's optimizers count their steps in tensors on the CPU, read them, and pass numbers computed from them to the
device (`lr / (1 - beta1 ** step)`); schedules set `lr` between steps. If such tensors, or floats that changed since the
previous call, may explain a difference, the call runs under a function mode. The mode records writes to the tensors.
Values read from them, and the floats, become `HostNumber`s, which record the arithmetic done with them. The result is
straight-line Python that computes the numbers of the program (`scalar_program.py`). Where the call branches on a
number, the straight-line code checks that the branch is the same.

A `HostNumber` fails type checks for `float`, and C functions refuse it. PyTorch's optimizers do neither. The program's
own code sees such numbers only where the user asked for replays, and not once it has checked types or raised an error;
otherwise it sees floats.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...compat.names.torch import pytree, schema_of
from ...ir.call_plan import Number, Plan
from ...ir.tape import Value
from ...ir.value_spec import Spec
from ...metrics import user_lines
from ...tensor.device import Device
from ...tensor.storage import value_of
from . import pure_allowlist
from .accessed_names import Reads
from .escaped_symbols import put_floats_back
from .guards import Change, Container, Look, Reached, bytes_of
from .scalar_program import HostPart
from .symbolic_floats import HostNumber

# Functions of PyTorch that write to tensors on the CPU from their own values, numbers and other CPU tensors.
_WRITES = frozenset(("add_", "sub_", "mul_", "div_", "fill_", "copy_", "zero_"))
_WRITES |= {f"_foreach_{name}" for name in _WRITES - {"fill_"}}
# Functions that compare such tensors with a number, by their names in function modes.
_COMPARES = frozenset(("__eq__", "__ne__", "eq", "ne", "lt", "le", "gt", "ge"))
# Functions whose result does not depend on the tensor's contents.
_TELLS = frozenset((
    "dim", "numel", "size", "is_floating_point", "is_complex", "element_size", "nelement", "ndimension", "stride",
    "is_contiguous", "is_inference", "get_device", "type", "__hash__", "__len__",
))  # fmt: skip
_ATTRIBUTES = frozenset((
    "device", "dtype", "shape", "ndim", "is_cpu", "is_cuda", "is_xla", "is_sparse", "is_meta", "layout", "itemsize",
    "nbytes", "requires_grad", "is_leaf", "grad_fn", "is_mkldnn", "is_quantized", "is_nested",
))  # fmt: skip
_GET = "__get__"
# Operators that PyTorch composes in Python of others.
_IN_PYTHON = frozenset((torch.Tensor.__rsub__, torch.Tensor.__rdiv__, torch.Tensor.__rpow__))  # type: ignore[attr-defined]


@dataclass
class Changing:
    """Host values that change from call to call, learned from the calls so far."""

    # By address: the call writes them. Alive: tensors with weak references cannot be swapped.
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    entries: set[tuple[int, str]] = field(default_factory=set)  # floats: the address of a dictionary, and the key
    left: dict[tuple[int, str], float] = field(default_factory=dict)  # all floats, as the last call left them
    is_shown: bool = True  # to the program's own code

    def learn_before(self, reached: Reached) -> None:
        """Record which floats changed since the last call."""
        now = _floats_in(reached).items()
        self.entries |= {place for place, value in now if repr(self.left.get(place, value)) != repr(value)}

    def learn_behind(self, reached: Reached) -> None:
        """Take note of the tensors on the CPU that a call has changed."""
        for each in reached.containers:
            if each.kind is Look.HOST and _is_number(each.held) and each.differences():
                self.tensors[id(each.held)] = each.held
        self.left = _floats_in(reached)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is one of those."""
        return self.tensors.get(id(tensor)) is tensor


def _floats_in(reached: Reached) -> dict[tuple[int, str], float]:
    return {(id(each.held), key): value for each in reached.containers for key, value in _floats_of(each)}


def _floats_of(container: Container) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the floats in a dictionary."""
    held = container.held
    if type(held) is dict and container.kind in (Look.MAP, Look.ATTRIBUTES, Look.NAMED):
        keys = container.names if container.kind is Look.NAMED else tuple(held)
        yield from ((key, held[key]) for key in keys if type(key) is str and type(held.get(key)) is float)


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.requires_grad


class _Functions(TorchFunctionMode):
    """Shows each call of a function of PyTorch's to a trace."""

    def __init__(self, trace: "HostTrace") -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.backward:
            # A Python function runs without the mode. Hooks and custom autograd functions are seen by the mode.
            with self:
                return _backward(*args, **(kwargs or {}))
        if func in _IN_PYTHON:
            with self:
                return func.__wrapped__(*args)
        return self._trace.call(func, args, kwargs or {})


class HostTrace:
    """A block around the body of one watched call. Afterwards `part` says what it computed on the host."""

    def __init__(self, changing: Changing, known_reads: Reads, reached: Reached, device: Device) -> None:
        self._mode = _Functions(self)
        self._is_shown = changing.is_shown and not known_reads.asks_for_types()
        self.reasons: list[str] = []
        self._device = device
        self._lines: list[str] = []
        self._messages: dict[int, str] = {}  # lines that end the computation, with the message
        self._numbers: dict[int, str] = {}  # index in the tape's numbers → its name
        self._given: dict[str, Any] = {}
        self._tokens: dict[str, Any] = {}  # what these are compared by with those of another call
        self._asked: set[str] = set()
        self._made: list[weakref.ref[HostNumber]] = []
        self._is_over = False
        self._read: dict[int, HostNumber] = {}
        self._compared: dict[int, tuple[torch.Tensor, str]] = {}  # the results of comparisons, by address
        self._sent: list[tuple[Value, str]] = []  # values on the device that came from the tensors
        written = _apart([each for each in reached.containers if each.kind is Look.HOST and changing.has(each.held)])
        self.tensors: list[torch.Tensor] = [each.held for each in written]
        self._names: dict[int, tuple[str, str]] = {}
        for each in written:
            self._names[id(each.held)] = self._given_as("t", each.held, id(each.held)), each.path
            each.let_change_all()
        self._entries: list[tuple[dict[Any, Any], str, HostNumber, str]] = []
        known: set[tuple[int, str]] = set()
        for each in reached.containers:
            found = {
                key: value
                for key, value in _floats_of(each)
                if (id(each.held), key) in changing.entries and (self._is_shown or not known_reads.looks_at(key))
            }
            if found:
                each.let_change(found)
            for key, value in found.items():
                if (id(each.held), key) not in known:  # a dictionary may be looked at in two ways
                    known.add((id(each.held), key))
                    name = self._given_as("e", each.held, id(each.held))
                    number = self._number(value, f"{name}[{key!r}]")
                    self._entries.append((each.held, key, number, f"{each.path}[{key!r}]"))

    def is_needed(self) -> bool:
        """Return whether anything changes on the host."""
        return bool(self.tensors or self._entries)

    def knows(self, change: Change) -> bool:
        """Return whether a change is one that it notes."""
        return any(change.path == path for _, path in self._names.values())

    def __enter__(self) -> "HostTrace":
        self._mode.__enter__()
        for held, key, number, _ in self._entries:
            held[key] = number
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)
        self.reasons += [
            f"it changes {path}" for held, key, number, path in self._entries if held.get(key) is not number
        ]
        # An unused value may be uploaded: `AveragedModel` does so with its count.
        self.reasons += [f"it uploads {path}, which it changes" for value, path in self._sent if value.slot >= 0]
        self._sent.clear()
        self.restore()

    def restore(self) -> None:
        """Replace the numbers by floats again. If an interrupt arrives here, call it once more."""
        for held, key, number, _ in self._entries:
            if held.get(key) is number:
                held[key] = number.value
        self._is_over = True

    def without_numbers(self, result: object) -> object:
        """Return the result of the call with floats in the places of numbers, which are gone from everywhere else,
        too.
        """
        if any(isinstance(leaf, torch.SymFloat) for leaf in pytree.tree_leaves(result)):
            self.reasons.append("it returns a number that the host computes: return it as a tensor")
            result = pytree.tree_map(lambda leaf: leaf.value if type(leaf) is HostNumber else leaf, result)
        self.end()
        return result

    def end(self) -> None:
        """Release the numbers, and put floats in their places wherever the call has kept some."""
        self._entries.clear()
        self._read.clear()
        self._compared.clear()
        if put_floats_back(self._made):
            self.reasons.append("it keeps a number that the host computes")

    @property
    def part(self) -> "HostPart":
        """Return the host computation."""
        return HostPart(self._lines, self._messages, self._numbers, self._given, self._tokens, self.tensors)

    # Called by numbers.

    def computed(self, value: object, text: str) -> Any:
        if self._is_over:
            return value
        if type(value) is not float:
            self.reasons.append(f"it makes `{value!r}` of a number that the host computes{_here()}")
            return value
        return self._number(value, text)

    def is_so(self, text: str, outcome: bool) -> bool:
        if not self._is_over:
            self._end_unless(f"({text}) is {outcome}", f"a number that the host computes compares otherwise{_here()}")
        return outcome

    def looked_at(self, number: HostNumber) -> None:
        if not self._is_over and number.name not in self._asked:
            self._asked.add(number.name)
            self._end_unless(
                f"repr({number.name}) == {repr(number.value)!r}",
                f"it looks at the value of a number that the host computes{_here()}",
            )

    def _end_unless(self, condition: str, message: str) -> None:
        self._messages[len(self._lines)] = message
        self._lines.append(f"if not ({condition}): return {message!r}")

    def _number(self, value: float, text: str) -> HostNumber:
        number = HostNumber(self, value, f"v{len(self._lines)}")
        self._lines.append(f"{number.name} = {text}")
        self._made.append(weakref.ref(number))
        return number

    # Called for PyTorch's functions.

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch's, and note what it does with what changes."""
        leaves = list(_leaves((args, kwargs)))
        written = [leaf for leaf in leaves if id(leaf) in self._names]
        if written and not self._is_over:
            return self._on_the_host(func, args, kwargs, written)
        compared = next((leaf for leaf in leaves if id(leaf) in self._compared), None)
        if compared is not None and func is torch.Tensor.__bool__:
            return self.is_so(f"bool({self._compared[id(compared)][1]})", bool(compared))
        if compared is not None:
            self.reasons.append(f"it does more than a branch by a comparison of a tensor on the CPU{_here()}")
        numbers = [leaf for leaf in leaves if type(leaf) is HostNumber]
        if numbers:
            return self._on_the_device(func, args, kwargs, numbers)
        return func(*args, **kwargs)

    def _on_the_host(self, func: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.item and written[0].is_floating_point() and (self._is_shown or not _program_asks()):
            number = self._read.get(id(written[0]))
            if number is None:
                name = self._names[id(written[0])][0]
                number = self._read[id(written[0])] = self._number(written[0].item(), f"{name}.item()")
            return number
        if name in _WRITES and all(id(each) in self._names for each in _tensors(args[:1])) and _is_here(args, kwargs):
            plain, named = _without_numbers(args), _without_numbers(kwargs)
            result = func(*plain, **named)
            self._given[name] = func
            texts = [*map(self._text, args), *(f"{key}={self._text(value)}" for key, value in kwargs.items())]
            self._lines.append(f"{name}({', '.join(texts)})")
            for tensor in _tensors(args[:1]):
                self._read.pop(id(tensor), None)
            return result
        if name in _COMPARES and len(args) == 2 and args[0] is written[0] and type(args[1]) in (int, float):
            result = func(*args)
            self._given[name] = func
            self._compared[id(result)] = result, f"v{len(self._lines)}"
            self._lines.append(f"v{len(self._lines)} = {name}({self._text(args[0])}, {self._text(args[1])})")
            return result
        if func is torch.Tensor.to:
            result = func(*args, **kwargs)
            if result.device.type == "xla":
                self._sent.append((value_of(result), self._names[id(written[0])][1]))
                return result
        if name not in _TELLS and not (name == _GET and func.__self__.__name__ in _ATTRIBUTES):
            path = self._names[id(written[0])][1]
            what = func.__self__.__name__ if name == _GET else name
            self.reasons.append(f"it uses {path}, a tensor on the CPU that it changes, with `{what}`{_here()}")
        return func(*_without_numbers(args), **_without_numbers(kwargs))

    def _on_the_device(self, func: Any, args: Any, kwargs: Any, numbers: list[HostNumber]) -> object:
        """Call a function with numbers. Where they are on the tape is known, or they are looked at."""
        tape = self._device.tape
        position, count = len(tape.code), len(tape.numbers)
        result = func(*_without_numbers(args), **_without_numbers(kwargs))
        found: dict[int, str] = {}
        plan = _only_plan(tape.code[position:]) if tape is self._device.tape else None
        if plan is not None and _name_of(plan.op) == _plain(getattr(func, "__name__", "")):
            # Arguments of the function that the operator does not take unchanged are not found.
            planned, named = plan.arguments
            names = [each.name for each in schema_of(plan.op).arguments]
            by_name = {**dict(zip(names, planned, strict=False)), **named}
            pairs = [*zip(planned, args, strict=False), *((by_name.get(key), value) for key, value in kwargs.items())]
            placed = {count + index: number for index, number in _placed(pairs)}
            found = {i: each.name for i, each in placed.items() if repr(tape.numbers[i]) == repr(each.value)}
        for number in numbers:
            if number.name not in found.values():
                self.looked_at(number)
        self._numbers.update(found)
        return result

    def _text(self, value: Any) -> str:
        """Return how an argument of a function of PyTorch's is written."""
        if type(value) is HostNumber:
            return value.name
        if isinstance(value, torch.Tensor):
            known = self._names.get(id(value))
            return known[0] if known is not None else self._given_as("c", value.detach().clone(), bytes_of(value))
        if type(value) in (list, tuple):
            return f"[{', '.join(map(self._text, value))}]"
        return repr(value) if type(value) in (bool, int, str, type(None)) else self._given_as("c", value, repr(value))

    def _given_as(self, kind: str, value: object, token: object) -> str:
        name = f"{kind}{len(self._given)}"
        self._given[name], self._tokens[name] = value, token
        return name


def _backward(tensor: torch.Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
    """Trace `Tensor.backward`, below the function of that name."""
    torch.autograd.backward(tensor, gradient, *args, **kwargs)


def _apart(containers: Sequence[Container]) -> list[Container]:
    """Return those whose tensors share their memory with none of the others."""
    storages = [id(each.held.untyped_storage()) for each in containers]
    return [each for each, storage in zip(containers, storages, strict=True) if storages.count(storage) == 1]


def _leaves(arguments: object) -> Iterator[Any]:
    if isinstance(arguments, (list, tuple)):
        for each in arguments:
            yield from _leaves(each)
    elif isinstance(arguments, dict):
        yield from _leaves(tuple(arguments.values()))
    else:
        yield arguments


def _tensors(arguments: object) -> list[torch.Tensor]:
    return [leaf for leaf in _leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _is_here(args: object, kwargs: object) -> bool:
    return all(tensor.is_cpu for tensor in _tensors((args, kwargs)))


def _only_plan(code: Sequence[Any]) -> Plan | None:
    """Return the plan of the one operation that was recorded, if it is one."""
    entries = [entry for entry in code if not isinstance(entry, (int, Spec))]
    return entries[0] if len(entries) == 1 else None


def _name_of(operator: object) -> str:
    """Return the name of an operator without its namespace, its overload and the suffix of in-place forms."""
    name = str(operator)
    return _plain(name.partition(".")[2] if name.count(".") > 1 else name)


def _plain(name: str) -> str:
    return name.partition(".")[0].strip("_")


def _placed(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, HostNumber]]:
    """Yield the numbers of a plan's arguments that are numbers of a trace, each with that of the call."""
    for planned, given in pairs:
        if isinstance(planned, Number) and type(given) is HostNumber:
            yield planned.index, given
        elif isinstance(planned, (list, tuple)) and isinstance(given, (list, tuple)) and len(planned) == len(given):
            yield from _placed(zip(planned, given, strict=True))


def _without_numbers(arguments: Any) -> Any:
    """Return the same with plain floats."""
    if type(arguments) is HostNumber:
        return arguments.value
    if type(arguments) in (list, tuple):
        return type(arguments)(map(_without_numbers, arguments))
    if type(arguments) is dict:
        return {key: _without_numbers(each) for key, each in arguments.items()}
    return arguments


def _program_asks() -> bool:
    """Return whether it is the program's own code that calls the function of PyTorch's that the mode was shown."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return pure_allowlist.domain_of(frame.f_code, frame.f_globals) is pure_allowlist.Domain.PROGRAM


def _here() -> str:
    frame = user_lines.user_frame(sys._getframe(1))
    return f" ({user_lines.text(user_lines.line_of(frame))})" if frame is not None else ""
