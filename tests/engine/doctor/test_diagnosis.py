"""The doctor's report in both forms: the verdict first, the findings last, and nothing that JSON lacks."""

import json
from dataclasses import replace

from torch_xla._engine.doctor import diagnosis
from torch_xla._engine.doctor.environment_facts import Surroundings
from torch_xla._engine.doctor.findings import Finding, Level

DEVICE = {"state": "ended", "type": "CPU", "names": ["CPU:0", "CPU:1"], "kind": "cpu", "bytes": 3 << 29}
AROUND = Surroundings(
    (3, 12, 1), "/usr/bin/python", {"torch": "2.13.0", "torchax": "0.1"}, (), (), ("thief",), ("rocm",), ("AMD GPU",),
    {"XLA_SYNC_WAIT": "1"}, frozenset(), {}, {"torch": {"cuda": "13.0"}, "device": DEVICE},
)  # fmt: skip
NOTE, WARNING, ERROR = (Finding(level, f"what {level.name}", "do this") for level in Level)


def test_the_worst_finding_is_the_verdict() -> None:
    assert [diagnosis.worst(found) for found in ([], [NOTE], [NOTE, ERROR, WARNING], [WARNING, NOTE])] == [
        Level.NOTE,
        Level.NOTE,
        Level.ERROR,
        Level.WARNING,
    ]
    for found in ([], [WARNING], [ERROR]):
        text, data = diagnosis.as_text(AROUND, found), diagnosis.as_data(AROUND, found)
        assert text.startswith(f"{diagnosis.VERDICTS[diagnosis.worst(found)]}\n")
        assert data["status"] == int(diagnosis.worst(found)) and data["works"] is (ERROR not in found)


def test_what_was_seen_is_told_by_sections() -> None:
    assert diagnosis.as_text(AROUND, [ERROR, NOTE]) == (
        "The xla device does not work here.\n\n"
        "Packages\n  python 3.12.1  /usr/bin/python\n  torch 2.13.0 (built for CUDA 13.0)\n  torchax 0.1\n\n"
        "Devices\n  hardware found: AMD GPU\n  xla:0 is CPU:0 (cpu)\n  xla:1 is CPU:1 (cpu)\n"
        "  memory of each: 1.5 GiB\n\n"
        "Plugins\n  of JAX: rocm\n  of PyTorch: thief\n\n"
        "Settings\n  XLA_SYNC_WAIT=1\n\n"
        "ERROR: what ERROR\n  remedy: do this\nNOTE: what NOTE\n  remedy: do this\n"
    )


def test_what_a_first_step_costs_is_told() -> None:
    facts = {"state": "ended", "right": True, "seconds": 0.44, "kept_in": "/home/me/.cache/torch_xla"}
    text = diagnosis.as_text(replace(AROUND, stages={"device": DEVICE, "computation": facts}), [])
    told = "a first step is compiled: one product took 0.4 s, a model takes longer; long ones are kept in"
    assert f"  memory of each: 1.5 GiB\n  {told} /home/me/.cache/torch_xla\n" in text
    unkept = replace(AROUND, stages={"device": DEVICE, "computation": {**facts, "kept_in": ""}})
    assert "takes longer; no program is kept on disk\n" in diagnosis.as_text(unkept, [])


def test_what_is_not_there_is_told_too() -> None:
    bare = replace(AROUND, hardware=(), settings={}, torch_backends=(), jax_plugins=(), stages={})
    text = diagnosis.as_text(bare, [])
    assert "Devices\n  hardware found: a CPU\n  none started\n" in text
    assert text.endswith("Plugins\n  of JAX: none\n\nSettings\n  none\n")
    failed = replace(AROUND, stages={"device": {"state": "failed", "error": "no"}})
    assert "  none started\n" in diagnosis.as_text(failed, [])


def test_the_data_is_what_json_has() -> None:
    data = diagnosis.as_data(AROUND, [WARNING])
    assert json.loads(json.dumps(data)) == {**data, "python": "3.12.1", "torch_backends": ["thief"]}
    assert data["findings"] == [{"level": "warning", "what": "what WARNING", "remedy": "do this"}]
