"""Small functions that see, change and return all sorts of things.

Each is run on a device, compiled in some way, and returns a log, which must be the same on the CPU in plain PyTorch.
"""

import argparse
import array
import collections
import contextlib
import contextvars
import copy
import functools
import inspect
import io
import itertools
import logging
import math
import queue
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

CALLS = 9

Compiled = Callable[[Callable[..., Any]], Callable[..., Any]]
Case = Callable[[str, Compiled], list[Any]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def ones(dev: str) -> torch.Tensor:
    return torch.ones(2, device=dev)


def told(value: Any) -> Any:
    """A value in terms that can be compared."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), value.detach().cpu().tolist()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [told(each) for each in value]
    if isinstance(value, dict):
        return type(value).__name__, {key: told(each) for key, each in value.items()}
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def calls(step: Callable[..., Any], dev: str, between: Callable[[int], Any] = lambda index: None) -> list[Any]:
    log = []
    for index in range(CALLS):
        between(index)
        log.append(told(step(ones(dev))))
    return log


# Identity


class Trainer:
    def __init__(self, dev: str, factor: float = 1.0) -> None:
        self.weight = torch.zeros(2, device=dev)
        self.factor = factor


@case
def new_trainers(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda trainer, x: trainer.weight.add_(x * trainer.factor))
    log = []
    for index in range(4):
        trainer = Trainer(dev, float(index))
        for _ in range(6):
            step(trainer, ones(dev))
        log.append(told(trainer.weight))
        del trainer
    return log


class Pair(NamedTuple):
    left: Any
    right: Any


def _new_objects(make: Callable[[int], Any], use: Callable[[Any], float]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        step = compiled(lambda thing, x: x * use(thing))
        return [told(step(make(index // 5), ones(dev))) for index in range(30)]

    return run


CASES["new_named_tuples"] = _new_objects(lambda i: Pair(i + 1, 2), lambda pair: float(pair.left))
CASES["new_lambdas"] = _new_objects(lambda i: lambda: float(i + 1), lambda f: f())
CASES["new_partials"] = _new_objects(lambda i: functools.partial(float, i + 1), lambda f: f())
CASES["new_ranges"] = _new_objects(lambda i: range(i + 1), lambda r: float(len(r)))
CASES["new_frozensets"] = _new_objects(lambda i: frozenset(range(i + 1)), lambda s: float(len(s)))
CASES["new_spaces"] = _new_objects(lambda i: types.SimpleNamespace(v=i + 1), lambda s: float(s.v))
CASES["new_floats"] = _new_objects(lambda i: -0.0 if i % 2 else 0.0, lambda z: math.copysign(1.0, z))
CASES["new_complex"] = _new_objects(
    lambda i: complex(0.0, -0.0 if i % 2 else 0.0), lambda z: math.copysign(1.0, z.imag)
)
CASES["new_scalars"] = _new_objects(lambda i: np.float64(i), float)


# Gradients and versions


@case
def returned_gradients(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))

    def function(x: torch.Tensor) -> Any:
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad

    step = compiled(function)
    kept = [step(ones(dev) * index) for index in range(CALLS)]
    return [told(each) for each in kept] + [len({id(each) for each in kept})]


@case
def kept_views_of_gradients(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))

    def function(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    step = compiled(function)
    kept = []
    for index in range(CALLS):
        step(ones(dev) * index)
        assert weight.grad is not None
        kept.append(weight.grad.detach() if index % 2 else weight.grad[1:])
    return [told(each) for each in kept]


@case
def gradients_saved_for_backward(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))
    other = nn.Parameter(torch.ones(2, device=dev))

    def function(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    step = compiled(function)
    log = []
    for index in range(CALLS):
        step(ones(dev) * index)
        loss = (other * weight.grad).sum()
        step(ones(dev) * (index + 10))
        other.grad = None
        loss.backward()
        log.append(told(other.grad))
    return log


@case
def accumulated_gradients(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))

    def function(x: torch.Tensor) -> None:
        (weight * x).sum().backward()

    step = compiled(function)
    log = []
    for index in range(24):
        if index % 3 == 0:
            weight.grad = None
        step(ones(dev) * index)
        log.append(told(weight.grad))
    return log


@case
def gradients_given_by_others(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))

    def function(x: torch.Tensor) -> None:
        (weight * x).sum().backward()

    step = compiled(function)
    log = []
    for index in range(12):
        if index % 4 == 3:
            weight.grad = torch.full((2,), float(index), device=dev)
        mine = weight.grad
        step(ones(dev) * index)
        log.append((told(weight.grad), told(mine), mine is weight.grad))
    return log


@case
def gradients_taken_away(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def function(x: torch.Tensor) -> Any:
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step = compiled(function)
    return [(step(ones(dev)), told(weight), told(weight.grad)) for _ in range(CALLS)]


def _adversaries(first: bool) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        judge, maker = (nn.Linear(2, 2).to(dev) for _ in range(2))
        with torch.no_grad():
            for each in (*judge.parameters(), *maker.parameters()):
                each.fill_(0.5)
        judges, makers = (torch.optim.SGD(each.parameters(), lr=0.5) for each in (judge, maker))

        def function(x: torch.Tensor) -> Any:
            if first:
                judges.zero_grad()
            made = maker(x)
            loss = (judge(x) - judge(made.detach())).sum()
            loss.backward()
            judges.step()
            makers.zero_grad()
            other = judge(made).sum()
            other.backward()
            makers.step()
            if not first:
                judges.zero_grad()
            return loss.detach(), other.detach()

        step = compiled(function)
        log = [told(step(ones(dev).reshape(1, 2))) for _ in range(7)]
        return log + [told([*judge.parameters(), *maker.parameters()])]

    return run


CASES["adversaries"] = _adversaries(True)
CASES["adversaries_that_clear_last"] = _adversaries(False)


@case
def versions_of_arguments(dev: str, compiled: Compiled) -> list[Any]:
    def function(x: torch.Tensor) -> None:
        x.mul_(2)
        x.add_(1)

    step = compiled(function)
    weight = nn.Parameter(torch.ones(2, device=dev))
    log: list[Any] = []
    for _ in range(CALLS):
        x = ones(dev)
        before = x._version
        product = (weight * x).sum()
        step(x)
        log.append(x._version - before)
        try:
            product.backward()
            log.append("no error")
        except RuntimeError as error:
            log.append("modified by an inplace operation" in str(error))
    return log


@case
def versions_of_what_shares_memory(dev: str, compiled: Compiled) -> list[Any]:
    one = torch.ones(2, device=dev)
    other, apart = one.detach(), one.data

    def function(x: torch.Tensor) -> None:
        one.add_(x)
        other.mul_(1)
        apart.add_(x)

    step = compiled(function)
    log = []
    for _ in range(CALLS):
        step(ones(dev))
        log.append((one._version, other._version, apart._version, told(one)))
    return log


def _told_apart(first: Callable[[torch.Tensor], torch.Tensor], use: Callable[[Any, Any], float]) -> Case:
    """Return a function that distinguishes the tensor that it closes over from equal ones."""

    def run(dev: str, compiled: Compiled) -> list[Any]:
        seen = ones(dev)
        step = compiled(lambda x: x * use(x, seen))
        return [told(step(first(seen) if index < 6 else seen)) for index in range(CALLS)]

    return run


CASES["is_what_it_sees"] = _told_apart(torch.Tensor.detach, lambda x, seen: 2.0 if x is seen else 3.0)
CASES["has_the_id_of_what_it_sees"] = _told_apart(torch.ones_like, lambda x, seen: 2.0 if id(x) == id(seen) else 3.0)
CASES["reads_a_version"] = _told_apart(lambda t: t.clone().mul_(1), lambda x, seen: float(x._version))
CASES["reads_a_base"] = _told_apart(lambda t: t[:], lambda x, seen: 2.0 if x._base is None else 3.0)
CASES["asks_for_a_view"] = _told_apart(lambda t: t[:], lambda x, seen: 2.0 if x._is_view() else 3.0)


@case
def copies_by_a_memo(dev: str, compiled: Compiled) -> list[Any]:
    seen, other = ones(dev), ones(dev) * 5
    memo = {id(seen): other}
    step = compiled(lambda x: copy.deepcopy(x, memo if x.dim() else None) + 1)
    given = [ones(dev) for _ in range(6)] + [seen] * 3
    return [told(step(each)) for each in given]


# Hooks and attributes


@case
def hooks_of_tensors(dev: str, compiled: Compiled) -> list[Any]:
    weight = nn.Parameter(torch.ones(2, device=dev))
    seen: list[str] = []

    def function(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    step = compiled(function)
    log = []
    for index in range(12):
        if index == 5:
            weight.register_hook(lambda g: g * 3)
        if index == 8:
            weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
        step(ones(dev))
        log.append((told(weight.grad), len(seen)))
    return log


def _global_hooks(register: Callable[..., Any], make: Callable[[list[int]], Any]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        layer = nn.Linear(2, 2).to(dev)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        seen: list[int] = []

        def function(x: torch.Tensor) -> None:
            layer(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step, log, handle = compiled(function), [], None
        for index in range(10):
            if index == 5:
                handle = register(make(seen))
            step(ones(dev).reshape(1, 2))
            log.append(len(seen))
        assert handle is not None
        handle.remove()
        return log

    return run


CASES["global_forward_hooks"] = _global_hooks(
    nn.modules.module.register_module_forward_hook, lambda seen: lambda *_: seen.append(1)
)
CASES["global_optimizer_hooks"] = _global_hooks(
    register_optimizer_step_post_hook, lambda seen: lambda *_: seen.append(1)
)


@case
def hooks_of_modules(dev: str, compiled: Compiled) -> list[Any]:
    layer, seen = nn.Linear(2, 2).to(dev), []

    def function(x: torch.Tensor) -> Any:
        return layer(x).detach().shape[0]

    step, log = compiled(lambda x: (function(x), x + 1)), []
    for index in range(10):
        if index == 5:
            layer.register_forward_hook(lambda *_: seen.append(1))
        step(ones(dev).reshape(1, 2))
        log.append(len(seen))
    return log


@case
def attributes_of_tensors(dev: str, compiled: Compiled) -> list[Any]:
    weight = torch.ones(2, device=dev)
    weight.scale = 1.0  # type: ignore[attr-defined]
    step = compiled(lambda x: x * weight.scale)  # type: ignore[attr-defined]

    def between(index: int) -> None:
        if index > 4:
            weight.scale = float(index)  # type: ignore[attr-defined]

    return calls(step, dev, between)


@case
def attributes_of_arguments(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda x: x * getattr(x, "scale", 1.0))
    log = []
    for index in range(CALLS):
        x = ones(dev)
        if index > 4:
            x.scale = float(index)  # type: ignore[attr-defined]
        log.append(told(step(x)))
    return log


# Containers


@case
def given_lists_that_grow(dev: str, compiled: Compiled) -> list[Any]:
    def function(kept: list[int], named: dict[str, int], x: torch.Tensor) -> torch.Tensor:
        kept.append(len(kept))
        named["last"] = 3
        return x * 2

    step, log = compiled(function), []
    for _ in range(CALLS):
        kept: list[int] = [1]
        named = {"last": 2}
        step(kept, named, ones(dev))
        log.append((list(kept), dict(named)))
    return log


def _returned(make: Callable[[Any, torch.Tensor], Any], see: Callable[[Any, Any], Any]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        held = types.SimpleNamespace(list=[1, 2], dict={"a": 1}, tensor=torch.ones(2, device=dev))
        step = compiled(lambda x: make(held, x))
        return [see(held, step(ones(dev))) for _ in range(CALLS)]

    return run


CASES["returns_a_list_it_sees"] = _returned(lambda h, x: (h.list, x + 1)[0:2], lambda h, r: (r[0] is h.list, told(r)))
CASES["returns_a_tensor_it_sees"] = _returned(lambda h, x: (h.tensor.add_(x), x + 1), lambda h, r: r[0] is h.tensor)
CASES["returns_one_list_twice"] = _returned(lambda h, x: (lambda a: (a, a))([x + 1]), lambda h, r: r[0] is r[1])
CASES["returns_one_tensor_twice"] = _returned(lambda h, x: (lambda a: (a, a))(x + 1), lambda h, r: r[0] is r[1])
CASES["returns_a_tensor_and_its_alias"] = _returned(
    lambda h, x: (lambda a: (a, a.detach()))(x + 1), lambda h, r: (r[0] is r[1], told(r))
)
CASES["returns_a_defaultdict"] = _returned(
    lambda h, x: collections.defaultdict(list, a=x + 1), lambda h, r: (told(r), type(r).__name__, r["b"])
)
CASES["returns_an_ordered_dict"] = _returned(
    lambda h, x: collections.OrderedDict(b=x + 1, a=x), lambda h, r: (told(r), list(r))
)
CASES["returns_a_named_tuple"] = _returned(lambda h, x: Pair(x + 1, 3), lambda h, r: (told(r), type(r).__name__))
CASES["returns_a_return_type"] = _returned(
    lambda h, x: torch.max(x + 1, 0), lambda h, r: (told(r.values), told(r.indices))
)
CASES["returns_views"] = _returned(
    lambda h, x: (x + 1).reshape(2, 1).t()[:, 1:], lambda h, r: (told(r), r._is_view(), r.stride())
)


class Labelled(tuple):
    label = "none"

    def __new__(cls, items: Any, label: str = "made") -> "Labelled":
        made = super().__new__(cls, items)
        made.label = label
        return made


class Tagged(torch.Tensor):
    pass


CASES["returns_a_tuple_subclass"] = _returned(lambda h, x: Labelled((x + 1, 2), "x"), lambda h, r: (told(r), r.label))
CASES["returns_a_tensor_subclass"] = _returned(
    lambda h, x: (x + 1).as_subclass(Tagged), lambda h, r: (type(r).__name__, told(r))
)


def _tagged(tensor: torch.Tensor) -> torch.Tensor:
    tensor.tag = "mine"  # type: ignore[attr-defined]
    return tensor


CASES["returns_a_tensor_with_attributes"] = _returned(lambda h, x: _tagged(x + 1), lambda h, r: (r.tag, told(r)))


@case
def returned_given_list(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda given, x: (given, x + 1))
    log = []
    for _ in range(CALLS):
        given = [1, 2]
        log.append(step(given, ones(dev))[0] is given)
    return log


# Objects that a function may see: each entry creates one, reads a number from it, and changes it.


class Slotted:
    __slots__ = ("late", "value")

    def __init__(self) -> None:
        self.value = 1.0


class Meta(type):
    rate = 1.0


class WithMeta(metaclass=Meta):
    pass


class Settings:
    rate = 1.0


class Other:
    @property
    def rate(self) -> float:
        return 7.0


@dataclass
class Config:
    rate: float = 1.0


class Computed:
    def __init__(self) -> None:
        self.rate_a = 1.0

    def __getattr__(self, name: str) -> Any:
        if name == "rate":
            return self.__dict__["rate_a"]
        raise AttributeError(name)


def _seen(make: Callable[[], Any], read: Callable[[Any], float], change: Callable[[Any, int], Any]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        thing = make()
        step = compiled(lambda x: x * read(thing))
        log = []
        for index in range(12):
            if index > 4 and index % 2:
                change(thing, index)
            log.append(told(step(ones(dev))))
        return log

    return run


def _set(name: str) -> Callable[[Any, int], None]:
    return lambda thing, index: setattr(thing, name, float(index))


variable = contextvars.ContextVar("variable", default=1.0)
module = types.ModuleType("a_module_of_the_test")
module.rate = 1.0  # type: ignore[attr-defined]
module.inner = types.ModuleType("inner")  # type: ignore[attr-defined]
module.inner.rate = 1.0  # type: ignore[attr-defined]
sys.modules["a_module_of_the_test"] = module
RATE = 1.0


def as_at_first() -> None:
    """Takes back what the functions have changed for good."""
    Settings.rate = Meta.rate = 1.0
    module.rate = module.inner.rate = with_attribute.rate = 1.0  # type: ignore[attr-defined]
    with_default.__defaults__ = (1.0,)
    with_code.__code__ = (lambda: 1.0).__code__
    globals().update(RATE=1.0)
    for name in ("LATE", "LATER"):
        globals().pop(name, None)
    variable.set(1.0)
    cached.cache_clear()
    RATE_OF_FUNCTION[0] = 1.0


def _import(_: Any) -> float:
    import a_module_of_the_test as imported  # type: ignore[import-not-found]

    return float(imported.rate)


def _local() -> Any:
    local = threading.local()
    local.rate = 1.0
    return local


def with_attribute() -> float:
    return with_attribute.rate  # type: ignore[attr-defined, no-any-return]


with_attribute.rate = 1.0  # type: ignore[attr-defined]


def with_default(rate: float = 1.0) -> float:
    return rate


def with_code() -> float:
    return 1.0


def _change_code(function: Any, index: int) -> None:
    function.__code__ = (lambda: 5.0).__code__ if index < 8 else (lambda: 6.0).__code__


@functools.lru_cache
def cached() -> float:
    return module.rate  # type: ignore[attr-defined, no-any-return]


def _change_cached(_: Any, index: int) -> None:
    module.rate = float(index)  # type: ignore[attr-defined]
    cached.cache_clear()


def _change_global(name: str) -> Callable[[Any, int], None]:
    return lambda _, index: globals().__setitem__(name, float(index))


def _late(_: Any) -> float:
    return LATE if "LATE" in globals() else 1.0  # type: ignore[name-defined, no-any-return]  # noqa: F821


def _late_name(_: Any) -> float:
    try:
        return LATER  # type: ignore[name-defined, no-any-return]  # noqa: F821
    except NameError:
        return 1.0


SEEN: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any, int], Any]]] = {
    "a_namespace": (lambda: argparse.Namespace(rate=1.0), lambda t: t.rate, _set("rate")),
    "a_simple_namespace": (lambda: types.SimpleNamespace(rate=1.0), lambda t: t.rate, _set("rate")),
    "a_thread_local": (_local, lambda t: t.rate, _set("rate")),
    "a_context_variable": (lambda: variable, lambda t: t.get(), lambda t, i: t.set(float(i))),
    "an_array": (lambda: array.array("d", [1.0]), lambda t: t[0], lambda t, i: t.__setitem__(0, float(i))),
    "a_user_list": (lambda: collections.UserList([1.0]), lambda t: t[0], lambda t, i: t.__setitem__(0, float(i))),
    "a_user_dict": (lambda: collections.UserDict(a=1.0), lambda t: t["a"], lambda t, i: t.__setitem__("a", float(i))),
    "a_chain_map": (lambda: collections.ChainMap({"a": 1.0}), lambda t: t["a"], lambda t, i: t.__setitem__("a", i)),
    "a_counter": (lambda: collections.Counter(a=1), lambda t: float(t["a"]), lambda t, i: t.__setitem__("a", i)),
    "a_deque": (lambda: collections.deque([1.0]), lambda t: t[0], lambda t, i: t.appendleft(float(i))),
    "a_set": (lambda: {1.0}, lambda t: float(sum(t)), lambda t, i: t.add(float(i))),
    "a_dict": (lambda: {"a": 1.0}, lambda t: t["a"], lambda t, i: t.__setitem__("a", float(i))),
    "a_default_dict": (
        lambda: collections.defaultdict(lambda: 1.0),
        lambda t: t.get("a", 1.0),
        lambda t, i: t.__setitem__("a", float(i)),
    ),
    "an_order_of_keys": (
        lambda: {"a": 1.0, "b": 2.0},
        lambda t: next(iter(t.values())),
        lambda t, i: t.__setitem__(next(iter(t)), t.pop(next(iter(t)))),
    ),
    "a_byte_array": (lambda: bytearray(b"\x01"), lambda t: float(t[0]), lambda t, i: t.__setitem__(0, i)),
    "a_memory_view": (lambda: memoryview(bytearray(b"\x01")), lambda t: float(t[0]), lambda t, i: t.__setitem__(0, i)),
    "a_function_with_an_attribute": (lambda: with_attribute, lambda t: t(), lambda t, i: setattr(t, "rate", float(i))),
    "a_default": (lambda: with_default, lambda t: t(), lambda t, i: setattr(t, "__defaults__", (float(i),))),
    "replaced_code": (lambda: with_code, lambda t: t(), _change_code),
    "a_cached_function": (lambda: cached, lambda t: t(), _change_cached),
    "a_cell": (lambda: types.CellType(1.0), lambda t: t.cell_contents, _set("cell_contents")),
    "a_module": (lambda: module, lambda t: t.rate, _set("rate")),
    "a_module_within": (lambda: module, lambda t: t.inner.rate, lambda t, i: setattr(t.inner, "rate", float(i))),
    "an_import": (lambda: module, _import, _set("rate")),
    "a_global": (lambda: None, lambda t: RATE, _change_global("RATE")),
    "a_late_global": (lambda: None, _late, _change_global("LATE")),
    "a_global_that_was_missing": (lambda: None, _late_name, _change_global("LATER")),
    "a_computed_name": (Settings, lambda t: getattr(t, "".join(("ra", "te"))), _set("rate")),
    "all_attributes": (
        lambda: types.SimpleNamespace(a=1.0), lambda t: float(len(vars(t))), lambda t, i: setattr(t, f"b{i}", 1)
    ),
    "attributes_by_name": (Computed, lambda t: t.rate, _set("rate_a")),
    "an_expression": (lambda: {"a": 1.0}, lambda t: eval("t['a']"), lambda t, i: t.__setitem__("a", float(i))),
    "an_attribute_of_a_class": (Settings, lambda t: t.rate, lambda t, i: setattr(Settings, "rate", float(i))),
    "an_attribute_of_a_metaclass": (lambda: WithMeta, lambda t: t.rate, lambda t, i: setattr(Meta, "rate", float(i))),
    "an_attribute_that_hides_one_of_its_class": (Settings, lambda t: t.rate, _set("rate")),
    "another_dict": (Config, lambda t: t.rate, lambda t, i: setattr(t, "__dict__", {"rate": float(i)})),
    "another_class": (Settings, lambda t: t.rate, lambda t, i: setattr(t, "__class__", Other if i < 8 else Settings)),
    "a_slot": (Slotted, lambda t: t.value, _set("value")),
    "a_late_slot": (Slotted, lambda t: getattr(t, "late", 1.0), _set("late")),
    "a_dataclass": (Config, lambda t: t.rate, _set("rate")),
    "a_bound_reader": (lambda: {"a": 1.0}.get, lambda t: t("a"), lambda t, i: t.__self__.__setitem__("a", float(i))),
    "a_view_of_a_dict": (
        lambda: (lambda d: (d, d.values()))({"a": 1.0}),
        lambda t: float(sum(t[1])),
        lambda t, i: t[0].__setitem__("a", float(i)),
    ),
    "a_host_tensor": (lambda: torch.ones(1), lambda t: t.item(), lambda t, i: t.fill_(i)),
    "a_host_tensor_through_numpy": (lambda: torch.ones(1), lambda t: t.item(), lambda t, i: t.numpy().fill(i)),
    "a_host_tensor_through_data": (lambda: torch.ones(1), lambda t: t.item(), lambda t, i: t.data.fill_(i)),
    "a_host_tensor_given_data": (
        lambda: torch.ones(1), lambda t: t.item(), lambda t, i: setattr(t, "data", torch.full((1,), float(i)))
    ),
    "a_numpy_array": (lambda: np.ones(1), lambda t: float(t[0]), lambda t, i: t.fill(i)),
    "the_dtype_of_an_array": (
        lambda: types.SimpleNamespace(a=np.zeros(2, np.float32)),
        lambda t: float(t.a.dtype.itemsize),
        lambda t, i: setattr(t, "a", t.a.view(np.int32 if i % 4 == 1 else np.int64)) if t.a.nbytes % 8 == 0 else None,
    ),
    "the_shape_of_an_array": (
        lambda: np.zeros((2, 3)), lambda t: float(t.shape[0]), lambda t, i: setattr(t, "shape", (3, 2))
    ),
    "an_array_of_objects": (
        lambda: np.array([[1.0]], dtype=object), lambda t: float(t[0, 0]), lambda t, i: t.__setitem__((0, 0), float(i))
    ),
    "a_zero_of_another_sign": (
        lambda: [0.0], lambda t: math.copysign(1.0, t[0]), lambda t, i: t.__setitem__(0, -0.0 if i % 4 == 1 else 0.0)
    ),
    "a_number_of_another_type": (lambda: [1], lambda t: float(type(t[0]) is bool), lambda t, i: t.__setitem__(0, True)),
    "a_partial": (
        lambda: functools.partial(lambda d: d["a"], {"a": 1.0}),
        lambda t: t(),
        lambda t, i: t.args[0].__setitem__("a", float(i)),
    ),
}  # fmt: skip
for _name, (_make, _read, _change) in SEEN.items():
    CASES[f"sees_{_name}"] = _seen(_make, _read, _change)


@case
def sees_a_weak_reference(dev: str, compiled: Compiled) -> list[Any]:
    target = Settings()
    reference = weakref.ref(target)
    step, log = compiled(lambda x: x * (2.0 if reference() is None else 1.0)), []
    for index in range(CALLS):
        if index == 6:
            del target
        log.append(told(step(ones(dev))))
    return log


# Side effects in the code of models.


@contextlib.contextmanager
def _scaled(held: dict[str, float]) -> Iterator[None]:
    before, held["scale"] = held["scale"], 2.0
    yield
    held["scale"] = before


@case
def decorated_by_a_context_manager(dev: str, compiled: Compiled) -> list[Any]:
    held = {"scale": 1.0, "rate": 1.0}
    step = compiled(_scaled(held)(lambda x: x * held["scale"] * held["rate"]))
    return calls(step, dev, lambda index: held.__setitem__("rate", float(index // 6 + 1)))


@case
def looks_at_signatures(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda x: x * float(len(inspect.signature(with_default).parameters)) * with_default())
    return calls(step, dev, lambda index: setattr(with_default, "__defaults__", (float(index // 6 + 1),)))


@case
def asks_for_captures(dev: str, compiled: Compiled) -> list[Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * (2.0 if torch.cuda.is_current_stream_capturing() else 3.0)
        except RuntimeError:  # PyTorch was built without CUDA
            return x * 4.0

    return calls(compiled(function), dev)


@case
def has_a_logger(dev: str, compiled: Compiled) -> list[Any]:
    logger = logging.getLogger("of a small function")
    logger.disabled = False
    step = compiled(lambda x: x * (2.0 if logger.disabled else 3.0))
    return calls(step, dev, lambda index: setattr(logger, "disabled", index > 6))


@case
def names_its_parts(dev: str, compiled: Compiled) -> list[Any]:
    @record_function("a part")
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    def function(x: torch.Tensor) -> torch.Tensor:
        with record_function("the rest"):
            return part(x) + 1.0

    return calls(compiled(function), dev)


@case
def copies_its_settings(dev: str, compiled: Compiled) -> list[Any]:
    settings = Config()
    step = compiled(lambda x: x * copy.deepcopy(settings).rate)
    return calls(step, dev, lambda index: setattr(settings, "rate", float(index // 6 + 1)))


class Scaling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * RATE_OF_FUNCTION[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * RATE_OF_FUNCTION[0]


RATE_OF_FUNCTION = [1.0]


@case
def sees_what_an_autograd_function_reads(dev: str, compiled: Compiled) -> list[Any]:
    RATE_OF_FUNCTION[0] = 1.0
    step = compiled(lambda x: Scaling.apply(x))
    return calls(step, dev, lambda index: RATE_OF_FUNCTION.__setitem__(0, float(index // 5 + 1)))


# Effects


def _effect(make: Callable[[], Any], act: Callable[[Any], Any], see: Callable[[Any], Any]) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        thing, log = make(), []

        def function(x: torch.Tensor) -> torch.Tensor:
            found = act(thing)
            return x * (found if isinstance(found, (int, float)) else 1.0)

        step = compiled(function)
        for _ in range(CALLS):
            log.append((told(step(ones(dev))), see(thing)))
        return log

    return run


def _nothing(_: Any) -> None:
    return None


def _first(iterator: Any) -> float:
    for each in iterator:
        return float(each)
    return -1.0


def _sender() -> Any:
    def run() -> Any:
        total = 0.0
        while True:
            total += yield total

    generator = run()
    next(generator)
    return generator


EFFECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "append": (list, lambda t: t.append(1), len),
    "append_of_a_bound_method": (list, lambda t: [f(1) for f in (t.append,)][0], len),
    "mapped_append": (list, lambda t: len(list(map(t.append, [1, 2]))), len),
    "next": (lambda: iter(range(100)), lambda t: float(next(t)), _nothing),
    "a_loop_over_an_iterator": (lambda: iter(range(100)), _first, _nothing),
    "zip": (lambda: iter(range(100)), lambda t: float(next(iter(zip(t, [0], strict=False)))[0]), _nothing),
    "sum_of_islice": (lambda: itertools.count(), lambda t: float(sum(itertools.islice(t, 2))), _nothing),
    "send": (_sender, lambda t: t.send(1.0), _nothing),
    "own_random": (lambda: random.Random(1), lambda t: t.random(), _nothing),
    "own_numpy_random": (lambda: np.random.default_rng(1), lambda t: float(t.random()), _nothing),
    "own_generator": (
        lambda: torch.Generator().manual_seed(1), lambda t: torch.rand(1, generator=t).item(), _nothing
    ),
    "global_random": (lambda: random.seed(1), lambda t: random.random(), _nothing),
    "writing_a_file": (io.StringIO, lambda t: t.write("x") and None, lambda t: t.getvalue()),
    "a_queue": (queue.Queue, lambda t: t.put(1), lambda t: t.qsize()),
    "a_simple_queue": (queue.SimpleQueue, lambda t: t.put(1), lambda t: t.qsize()),
    "mapped_print": (
        io.StringIO,
        lambda t: len(list(map(functools.partial(print, file=t), "ab"))) * 0.0,
        lambda t: t.getvalue(),
    ),
    "item_assignment": (dict, lambda t: t.__setitem__("a", t.get("a", 0) + 1), lambda t: t["a"]),
    "counter": (lambda: types.SimpleNamespace(n=0), lambda t: setattr(t, "n", t.n + 1), lambda t: t.n),
    "an_item_deleted": (lambda: list(range(100)), lambda t: t.pop(), len),
    "context_variable": (lambda: variable, lambda t: t.set(t.get() + 1) and None, lambda t: t.get()),
    "a_host_tensor": (lambda: torch.zeros(1), lambda t: t.add_(1) and None, lambda t: t.item()),
    "a_numpy_array": (lambda: np.zeros(1), lambda t: np.add(t, 1, out=t) and None, lambda t: float(t[0])),
}  # fmt: skip
for _name, (_start, _act, _see) in EFFECTS.items():
    CASES[f"effect_of_{_name}"] = _effect(_start, _act, _see)


@case
def effect_of_writing_to_stdout(dev: str, compiled: Compiled) -> list[Any]:
    before, sys.stdout = sys.stdout, io.StringIO()
    try:

        def function(x: torch.Tensor) -> torch.Tensor:
            sys.stdout.write("x")
            return x + 1

        return [*calls(compiled(function), dev), sys.stdout.getvalue()]
    finally:
        sys.stdout = before


@case
def errors_after_a_while(dev: str, compiled: Compiled) -> list[Any]:
    limits = {"calls": 100}

    def function(x: torch.Tensor) -> torch.Tensor:
        if limits["calls"] < 0:
            raise ValueError("over")
        return x + 1

    step, log = compiled(function), []
    for index in range(CALLS):
        if index == 6:
            limits["calls"] = -1
        try:
            log.append(told(step(ones(dev))))
        except ValueError as error:
            log.append(str(error))
    return log


# Circumstances


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.square else result


class Counting(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.seen += function is torch.ops.aten.pow.Tensor_Scalar
        return function(*args, **(kwargs or {}))


def _under(context: Callable[[], Any], see: Callable[[], Any] = lambda: None) -> Case:
    def run(dev: str, compiled: Compiled) -> list[Any]:
        Counting.seen = 0
        step, log = compiled(lambda x: torch.square(x + 1) * float(torch.is_grad_enabled() + 1)), []
        for index in range(10):
            if index in (5, 6, 8):
                with context():
                    log.append((told(step(ones(dev))), see()))
            else:
                log.append((told(step(ones(dev))), see()))
        return log

    return run


CASES["under_a_function_mode"] = _under(Doubling)
CASES["under_a_dispatch_mode"] = _under(Counting, lambda: Counting.seen)
CASES["under_inference_mode"] = _under(torch.inference_mode)
CASES["under_no_grad"] = _under(torch.no_grad)
CASES["under_anomaly_detection"] = _under(functools.partial(torch.autograd.set_detect_anomaly, True))


@case
def under_a_default_device(dev: str, compiled: Compiled) -> list[Any]:
    step, log = compiled(lambda x: (x + 1, str(torch.ones(1).device.type == "meta"))), []
    for index in range(10):
        if index in (5, 6, 8):
            with torch.device("meta"):
                log.append(told(step(torch.ones(2, device=dev))))
        else:
            log.append(told(step(ones(dev))))
    return log


@case
def under_hooks_of_saved_tensors(dev: str, compiled: Compiled) -> list[Any]:
    weight, seen = nn.Parameter(torch.ones(2, device=dev)), []

    def function(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return tensor

    step, log = compiled(function), []
    for index in range(10):
        if index in (5, 8):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                step(ones(dev))
        else:
            step(ones(dev))
        log.append((told(weight.grad), len(seen) > 0))
    return log


@case
def writes_in_inference_mode(dev: str, compiled: Compiled) -> list[Any]:
    with torch.inference_mode():
        state = torch.zeros(2, device=dev)
        step = compiled(lambda x: state.add_(x) * 2)
        return [(told(step(ones(dev))), step(ones(dev)).is_inference()) for _ in range(CALLS)]


@case
def under_vmap(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda x: x * 2 + 1)
    return [told(torch.func.vmap(step)(torch.ones(3, 2, device=dev))) for _ in range(6)] + calls(step, dev)


@case
def given_tuple_subclasses(dev: str, compiled: Compiled) -> list[Any]:
    step = compiled(lambda pair, x: x * pair[0])
    log = [told(step(Labelled((index // 5, 1)), ones(dev))) for index in range(10)]
    return log + [told(step(Pair(2, 1), ones(dev))) for _ in range(5)]


@case
def in_another_thread(dev: str, compiled: Compiled) -> list[Any]:
    step, log = compiled(lambda x: x * (2.0 if threading.current_thread() is threading.main_thread() else 3.0)), []
    for index in range(10):
        if index in (6, 8):
            thread = threading.Thread(target=lambda: log.append(told(step(ones(dev)))))
            thread.start()
            thread.join()
        else:
            log.append(told(step(ones(dev))))
    return log
