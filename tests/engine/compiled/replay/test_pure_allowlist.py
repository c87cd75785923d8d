"""Which code and which functions written in C a replay understands."""

import collections
import copy
import enum
import functools
import json
import math
import operator
import random
import time
import types
from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla.runtime
from torch_xla._engine.compiled.replay import pure_allowlist
from torch_xla._engine.compiled.replay.pure_allowlist import Domain
from torch_xla._engine.ir import value_spec


def domain(function: Any) -> Domain:
    return pure_allowlist.domain_of(function.__code__, function.__globals__)


@pytest.mark.parametrize(
    ("function", "whose"),
    [
        (domain, Domain.PROGRAM),
        (json.dumps, Domain.PYTHON),
        (torch.nn.Linear.forward, Domain.TORCH),
        (np.average.__wrapped__, Domain.NUMPY),
        (jax.jit, Domain.ENGINE),
        (value_spec.spec_of, Domain.ENGINE),
        (torch_xla.sync, Domain.FACADE),
        (pytest.fixture, Domain.PROGRAM),
        (collections.namedtuple("Pair", "a")._make.__func__, Domain.PYTHON),
    ],
    ids=lambda each: getattr(each, "__qualname__", str(each)),
)
def test_whose_code_it_is(function: Any, whose: Domain) -> None:
    assert domain(function) is whose


@pytest.mark.parametrize(
    ("module", "whose"), [("__main__", Domain.PROGRAM), ("torch.nn", Domain.TORCH), ("json", Domain.PYTHON)]
)
def test_what_was_generated_belongs_to_its_module(module: str, whose: Domain) -> None:
    assert pure_allowlist.domain_of(compile("1", "<string>", "eval"), {"__name__": module}) is whose


def test_what_pytorch_evaluates_around_a_traced_function_is_its_own() -> None:
    def domain_of(text: str, **namespace: Any) -> Domain:
        made = eval(text, namespace)
        return pure_allowlist.domain_of(made.__code__, made.__globals__)

    assert domain_of("lambda arg0,arg1: fn(arg0,arg1)", fn=len) is Domain.TORCH
    assert domain_of("lambda x: fn(x)", fn=len) is Domain.PROGRAM
    assert domain_of("lambda arg0: fn(arg0) + rate", fn=len, rate=2) is Domain.PROGRAM


def test_code_that_does_more_than_compute_is_not_known() -> None:
    def is_known(function: Any) -> bool:
        return pure_allowlist.code_is_allowed(function.__code__, function.__globals__)

    for function in (
        torch.nn.Linear.forward,
        torch.optim.SGD.step.__wrapped__,
        functools.partialmethod.__get__,
        copy.deepcopy,
    ):
        assert is_known(function), function
    for function in (
        json.dumps,
        torch.save,
        torch.distributed.init_process_group,
        domain,
        torch_xla.runtime.world_size,
    ):
        assert not is_known(getattr(function, "__wrapped__", function)), function


KNOWN = [
    len, isinstance, math.sqrt, operator.add, [].append, {}.get, "a".join, set().add, torch.add, torch.tensor,
    torch.ones(1).add_, torch.ones(1).size, torch.ones(1).tolist, np.zeros, np.ones(1).sum, collections.deque().append,
    object.__new__, torch.Size([1]).numel,
]  # fmt: skip
UNKNOWN = [
    print, open, input, time.time, time.sleep, exec, eval, random.random, np.random.rand, torch.seed, torch.manual_seed,
    np.ones(1).tofile, torch.from_file,
]  # fmt: skip


def test_what_is_written_in_c_is_known_by_what_it_does() -> None:
    assert [each for each in KNOWN if not pure_allowlist.call_is_allowed(each)] == []
    assert [
        each for each in UNKNOWN if isinstance(each, types.BuiltinFunctionType) and pure_allowlist.call_is_allowed(each)
    ] == []


@pytest.mark.parametrize(
    ("called", "text"),
    [
        (print, "prints"),
        (open, "opens a file"),
        (time.sleep, "sleeps"),
        (time.perf_counter, "looks at the clock"),
        (json.encoder.c_make_encoder, "calls _json.Encoder, which may do more than return a value"),
        (random.Random(0).random, "calls random.Random.random, which may do more than return a value"),
    ],
)
def test_what_is_not_known_is_said_in_words(called: Any, text: str) -> None:
    assert pure_allowlist.said(called) == text


class Plain:
    pass


class Slots:
    __slots__ = ("a", "b")


class OfList(list[int]):
    pass


class Kind(enum.Enum):
    ONE = 1


@pytest.mark.parametrize("kind", [Plain, Slots, OfList, type("Made", (Plain,), {"__slots__": ("c",)})])
def test_state_in_attributes_slots_and_contents_is_seen(kind: type) -> None:
    assert pure_allowlist.state_is_in_python(kind)


@pytest.mark.parametrize("kind", [type(iter([])), random.Random, types.GeneratorType, bytearray, torch.Generator])
def test_state_below_python_is_not(kind: type) -> None:
    assert not pure_allowlist.state_is_in_python(kind)


def test_libraries_are_known_by_their_packages() -> None:
    assert pure_allowlist.is_torchs(torch.nn.Linear) and pure_allowlist.is_torchs(type("Own", (torch.nn.Module,), {}))
    assert (
        pure_allowlist.is_of_library(np.ndarray)
        and pure_allowlist.is_of_library(enum.Enum)
        and not pure_allowlist.is_of_library(Plain)
    )
    assert pure_allowlist.is_allowed_package("torch.nn") and not pure_allowlist.is_allowed_package("torchvision")
    assert not pure_allowlist.is_torchs(Kind)


def test_files_without_end_are_forgotten() -> None:
    assert 0 < pure_allowlist._domain_of_file.cache_parameters()["maxsize"] <= 1 << 16
