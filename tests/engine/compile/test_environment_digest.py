"""The digest of the installation covers everything that changes XLA's result for the same program."""

from dataclasses import fields
from typing import Any

import jax
import pytest
import torch

from torch_xla._engine.compile import environment_digest, source_digest
from torch_xla._engine.compile.environment_digest import Installation
from torch_xla._engine.runtime import device_assignment as targets

CHANGES: dict[str, Any] = {
    "torch": lambda patch: patch.setattr(torch, "__version__", "0"),
    "jax": lambda patch: patch.setattr(jax, "__version__", "0"),
    "jaxlib": lambda patch: patch.setattr(environment_digest, "version", lambda package: "0"),
    "rules": lambda patch: patch.setattr(source_digest, "digest", lambda: "0"),
    "flags": lambda patch: patch.setenv("XLA_FLAGS", "--xla_any=1"),
    "tpu_flags": lambda patch: patch.setenv("LIBTPU_INIT_ARGS", "--any=1"),
    "processor": lambda patch: patch.setattr(environment_digest, "_processor", lambda: "0"),
    "instructions": lambda patch: patch.setattr(environment_digest, "instructions_in_force", lambda: "0"),
    "cores": lambda patch: patch.setattr("os.sched_getaffinity", lambda process: range(1000)),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_each_part_is_read(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.of_device(jax.devices("cpu")[0])
    before = environment_digest.read(target)
    CHANGES[changed](monkeypatch)
    after = environment_digest.read(target)
    assert {f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)} == {changed}


def test_every_part_is_told() -> None:
    names = [field.name for field in fields(Installation)]
    assert {*CHANGES, "runtime"} == set(names)  # the runtime is asked of the client
    texts = Installation(*names).texts()
    assert sorted(texts.values()) == sorted(names)
