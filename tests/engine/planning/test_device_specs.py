"""The peak rates of devices, found by what PJRT calls them."""

import pytest

from torch_xla._engine.planning.device_specs import DeviceSpec, device_specs, spec_named, spec_of_kind


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "TPU v4"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5e", "TPU v5e"),
        ("TPU v5", "TPU v5p"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v6 lite", "TPU v6e"),
        ("TPU v6e", "TPU v6e"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        # Unknown devices.
        ("TPU v2", None),
        ("TPU v3", None),
        ("TPU7x", None),
        ("TPU v4 lite", None),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_the_kinds_that_pjrt_tells(kind: str, name: str | None) -> None:
    found = spec_of_kind(kind)
    assert (found and found.name) == name


def test_a_spec_that_a_program_adds_is_found_by_its_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = DeviceSpec("Abacus of wood", 10, {"f32": 1.0}, 1.0, 1.0)
    monkeypatch.setitem(device_specs, mine.name, mine)
    assert spec_of_kind("Abacus of wood") is mine and spec_named("Abacus of wood") is mine
    assert spec_of_kind("Frame of wood") is None


def test_a_dtype_without_a_rate_has_that_of_float32() -> None:
    for spec in device_specs.values():
        assert spec.rate("f8e4m3fn") == spec.rate("f32") == spec.flops["f32"] > 0
        assert spec.rate("bf16") >= spec.rate("f32") and min(spec.memory, spec.bandwidth, spec.link_bandwidth) > 0


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match=r"plan\(device='H1000'\): no such device is known. Known are 'TPU v4', .*'L4'"
    ):
        spec_named("H1000")
