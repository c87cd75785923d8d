"""The list contains every replaced attribute of PyTorch and JAX, and nothing else."""

import json
import subprocess
import sys
from typing import Any

import pytest

from torch_xla._engine.compat import patch_list


class Owner:
    """Has what is replaced."""

    @staticmethod
    def add(x: int, y: int) -> int:
        return x + y


class Heir(Owner):
    """Inherits it."""


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, as `theirs.Owner`, `theirs.Heir` and `theirs.add`; and a list of its own."""
    module: Any = type(sys)("theirs")
    module.Owner, module.Heir, module.add = Owner, Heir, Owner.add
    monkeypatch.setitem(sys.modules, "theirs", module)
    monkeypatch.setattr(patch_list, "ALL", [])


def test_a_function_is_replaced_under_every_name(owners: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "add", Owner.add)
    patch = patch_list.Patch("theirs.Owner.add", "theirs.add")
    assert patch_list.ALL == [patch] and not patch.in_force
    patch.wrap(lambda original: staticmethod(lambda x, y: original(x, y) + 1))
    assert patch.in_force and Owner.add(1, 2) == sys.modules["theirs"].add(1, 2) == 4


def test_a_function_is_replaced_for_a_time(owners: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "add", original := staticmethod(Owner.add))
    patch = patch_list.Patch("theirs.Owner.add")
    with (
        pytest.raises(ZeroDivisionError),
        patch.wrapped(lambda original: staticmethod(lambda x, y: 10 * original(x, y))),
    ):
        assert Owner.add(1, 2) == 30 and patch.in_force
        raise ZeroDivisionError
    assert Owner.add is original.__func__ and not patch.in_force


def test_what_a_class_inherits_comes_back(owners: None) -> None:
    patch = patch_list.Patch("theirs.Heir.add")
    patch.put(staticmethod(lambda x, y: 0))
    assert Heir.add(1, 2) == 0
    patch.take_back()
    assert Heir.add(1, 2) == 3 and not patch.in_force and "add" not in vars(Heir)


def test_what_a_release_lacks_is_left_out_there(owners: None) -> None:
    patch = patch_list.Patch("theirs.sub", since="2.0")
    patch.wrap(lambda original: original)
    assert not patch.in_force
    with pytest.raises(AttributeError, match="sub"):
        patch_list.Patch("theirs.sub").wrap(lambda original: original)


# Prints what differs between the list and what is replaced: by the import, when all is used that replaces something
# later, and when what can be was taken back. After the import whatever has changed counts; later PyTorch has changed
# some of its own, and what counts is the functions of ours in their modules.
COMPARISON = """
import importlib, json, os, sys
from types import FunctionType, ModuleType

for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:  # a namespace of operators
        pass
import torch
torch.utils.rename_privateuse1_backend("xla")  # which changes what tells the name

THEIRS = ("torch", "jax", "jaxlib")

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in THEIRS and type(module) is ModuleType and not f"{name}.".startswith("torch.xla."):
            classes = [each for each in list(vars(module).values()) if isinstance(each, type)]
            known = [each for each in classes if each.__module__.split(".")[0] in THEIRS]
            # The name of a device is one of enumerations in C++, which are given their methods anew with it.
            for owner in (module, *(each for each in known if not hasattr(each, "__members__"))):
                for key, value in list(vars(owner).items()):
                    if not isinstance(value, ModuleType):
                        found[id(owner), key] = owner, value
    return found

def function_of(value):
    return value.fget if type(value) is property else value.__func__ if type(value) is staticmethod else value

def is_ours(value):
    function = function_of(value)
    return type(function) is FunctionType and f"{os.sep}torch_xla{os.sep}" in function.__code__.co_filename

def compare(when, changed):
    listed = {(id(owner), key): name for patch in patch_list.ALL if patch.in_force
              for name in patch.names for owner, key in [patch_list._found(name)]}
    # Dynamo keeps some of what it finds.
    copied = [function_of(changed[key][1]) for key in changed.keys() & listed.keys()]
    for key in changed.keys() - listed.keys():
        owner, value = changed[key]
        if (owner, key[1]) == (torch.distributed.Backend, "XLA"):  # added by PyTorch's public `register_backend`
            continue
        if not any(function_of(value) is each for each in copied):
            print(f"{when}: {owner.__name__}.{key[1]} is replaced and not in the list")
    for key in listed.keys() - changed.keys() - seen:
        print(f"{when}: {listed[key]} is in the list and not replaced")
    seen.update(changed)

seen = set()  # Dynamo replaces the method of an optimizer again

def ours():
    return {key: found for key, found in attributes().items() if is_ours(found[1])}

before = attributes()
import torch_xla
from torch_xla._engine.compat import patch_list
owners = {owner for owner, _ in before}
compare("on import", {key: found for key, found in attributes().items()
                      if key[0] in owners and (key not in before or before[key][1] is not found[1])})
from torch.distributed.device_mesh import DeviceMesh
import torch_xla.distributed.spmd
import torch_xla.distributed.xla_backend
from torch_xla._engine.distributed import init_process_group
from torch_xla._engine.distributed.fsdp import fsdp_unit
from torch_xla._engine.compiled.loops import nested_loops  # loops and branches
from torch_xla._engine.compat.names import torch_distributed
from torch_xla._engine.compat.patches import autograd_observers
torch.compile(print)
DeviceMesh("xla", [0])
init_process_group._patch()
fsdp_unit._tell_norms_of_parts()
torch_distributed._move_what_is_sharded(print)
torch_distributed._draw_in(print)
autograd_observers.listen(print)
body = nested_loops.Substitution(lambda tensor: tensor)  # as while a body is traced
body.__enter__()
compare("in use", ours())
for patch in patch_list.ALL:
    if not patch.in_force and not patch.since:
        print(f"{patch.names[0]} is not replaced by what was called here")
body.__exit__(None, None, None)
autograd_observers.unlisten(print)
compare("afterwards", ours())
"""


@pytest.mark.slow
def test_the_list_is_whole() -> None:
    known = [name for name in sys.modules if name.split(".")[0] in ("torch", "jax", "jaxlib")]
    command = [sys.executable, "-c", COMPARISON, json.dumps(known)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout
