"""The list contains every replaced attribute of PyTorch and JAX, and nothing else."""

import json
import subprocess
import sys

import pytest

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
                    # Python notes in a module which warnings of it were shown, or were to be.
                    if not isinstance(value, ModuleType) and key != "__warningregistry__":
                        found[id(owner), key] = owner, value
    return found

def function_of(value):
    return value.fget if type(value) is property else value.__func__ if type(value) is staticmethod else value

def is_ours(value):
    function = function_of(value)
    return type(function) is FunctionType and f"{os.sep}torch_xla{os.sep}" in function.__code__.co_filename

def compare(when, changed):
    listed = {(id(owner), key): name for patch in ALL if patch.in_force
              for name in patch.names for owner, key in [owner_of(name)]}
    # Dynamo keeps some of what it finds.
    copied = [function_of(changed[key][1]) for key in changed.keys() & listed.keys()]
    for key in changed.keys() - listed.keys():
        owner, value = changed[key]
        if (owner.__name__, key[1]) in (("Backend", "XLA"), ("CacheInfo", "xla_artifacts")):  # added by registries
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
from torch_xla._engine.compat.patch import ALL, owner_of
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
for patch in ALL:
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
