"""Scripts are saved with their values from `xla`, loaded onto it, and moved to it."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.package import PackageExporter, PackageImporter

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:Lite Interpreter", "ignore:.torch.load. received")


class Many(nn.Module):
    """A module with tensors in attributes of several kinds, some with shared memory."""

    listed: list[torch.Tensor]
    named: dict[str, torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("buffer", torch.arange(3.0))
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[1::2])
        self.plain = torch.ones(3)
        self.listed = [torch.arange(3.0)]
        self.named = {"a": torch.ones(3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.buffer + self.part
        if self.plain is not None:
            inside = inside + self.plain + self.listed[0] + self.named["a"]
        return self.second(self.first(x)) + inside


def on(device: str, module: Any) -> Any:
    """The module, and the tensors that `to` leaves where they are, on the device."""
    module.to(device)
    module.part = module.whole[1::2]
    module.plain, module.listed = module.plain.to(device), [x.to(device) for x in module.listed]
    module.named = {name: x.to(device) for name, x in module.named.items()}
    return module


def scripted(module: Any) -> Any:
    return torch.jit.script(module)


def traced(module: Any) -> Any:
    """Makes constants of the tensors that are not registered."""
    for name in ("plain", "listed", "named"):
        setattr(module, name, None)
    return torch.jit.trace(module, torch.ones(2, 3, device=module.buffer.device))


def saved(script: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("make", [scripted, traced])
@pytest.mark.parametrize("place", [None, "cpu", "xla", torch.device("xla", 0)])
def test_what_is_saved_from_the_device_is_loaded_with_its_values(make: Callable[[Any], Any], place: Any) -> None:
    module = Many()
    script = make(on("xla", module))
    expected = script(torch.ones(2, 3, device="xla")).cpu()
    loaded = torch.jit.load(saved(script), map_location=place)
    device = "cpu" if place is None else torch.device(place).type
    assert {x.device.type for x in (*loaded.parameters(), *loaded.buffers())} == {device}
    torch.testing.assert_close(loaded(torch.ones(2, 3, device=device)).cpu(), expected)
    assert all(p.requires_grad for p in loaded.parameters())
    assert script.first.weight.device.type == "xla"
    torch.testing.assert_close(script(torch.ones(2, 3, device="xla")).cpu(), expected)


def test_an_archive_is_what_the_cpu_writes() -> None:
    module = Many()
    theirs = torch.jit.load(saved(scripted(module)))
    ours = torch.jit.load(saved(scripted(on("xla", module))))
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value) and ours.state_dict()[name].stride() == value.stride()
    for loaded in (ours, theirs):
        assert loaded.first.weight.data_ptr() == loaded.second.weight.data_ptr()
        assert loaded.part.data_ptr() == loaded.whole[1:].data_ptr()


def test_what_shares_memory_is_one_tensor_on_the_device() -> None:
    loaded = torch.jit.load(saved(scripted(Many())), map_location="xla")
    with torch.no_grad():
        loaded.first.weight.fill_(2)
    assert loaded.second.weight.unique().tolist() == [2]


@pytest.mark.parametrize("loader", [torch.jit.load, torch.load])
def test_an_archive_of_the_cpu_is_loaded_onto_the_device(loader: Any, tmp_path: Path) -> None:
    module = Many()
    path = tmp_path / "script.pt"
    scripted(module).save(path)
    options = {} if loader is torch.jit.load else {"weights_only": False}
    loaded = loader(path, map_location="xla", **options)
    x = torch.ones(2, 3)
    torch.testing.assert_close(loaded(x.to("xla")).cpu(), module(x))


def test_a_loaded_script_moves_to_the_device_and_is_trained_there() -> None:
    module = Many()
    loaded = torch.jit.load(saved(scripted(nn.Sequential(module.first, module.second))))
    assert loaded.to("xla") is loaded
    assert {p.device.type for p in loaded.parameters()} == {"xla"}
    assert getattr(loaded, "0").weight is getattr(loaded, "1").weight  # one memory in the file
    expected = nn.Sequential(module.first, module.second)
    for model, device in ((loaded, "xla"), (expected, "cpu")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3, device=device)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(getattr(loaded, "0").weight.detach().cpu(), module.first.weight.detach())
    assert getattr(loaded.cpu(), "0").weight.grad.device.type == "cpu"


def test_constants_are_loaded_onto_the_device(tmp_path: Path) -> None:
    frozen = torch.jit.freeze(scripted(Many().eval()))
    x = torch.ones(2, 3)
    loaded = torch.jit.load(saved(frozen), map_location="xla")
    torch.testing.assert_close(loaded(x.to("xla")).cpu(), frozen(x))
    constant = torch.arange(3.0)
    loaded = torch.jit.load(saved(torch.jit.trace(lambda x: x + constant, x)), map_location="xla")
    assert loaded(x.to("xla")).tolist() == (x + constant).tolist()


def test_constants_on_the_device_are_refused(tmp_path: Path) -> None:
    constant = torch.arange(3.0, device="xla")
    message = (
        r"cannot save a script with a constant on xla:0, a tensor of size \(3,\)\. Tracing makes constants of the "
        r"tensors that a function closes over, freezing of weights\. Trace or freeze with everything on the CPU "
        r"\(`model.cpu\(\)`\), save that, and load it by `torch.jit.load\(file, map_location='xla'\)`\."
    )
    with pytest.raises(RuntimeError, match=message):
        saved(torch.jit.trace(lambda x: x + constant, constant.clone()))
    with pytest.raises(RuntimeError, match=message):
        torch.jit.trace(lambda x: x + constant, constant.clone()).save(str(tmp_path / "saved"))
    with pytest.raises(RuntimeError, match="cannot save a script with a constant"):
        saved(torch.jit.freeze(scripted(on("xla", Many()).eval())))


def test_every_way_to_save_writes_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(3, 4)
    expected = module.weight.detach().clone()
    script = scripted(module.to("xla"))

    script.save(str(tmp_path / "saved"))
    script._save_for_lite_interpreter(str(tmp_path / "lite"))
    (tmp_path / "buffer").write_bytes(script._save_to_buffer_for_lite_interpreter())
    for name in ("saved", "lite", "buffer"):
        assert torch.equal(torch.jit.load(tmp_path / name).weight, expected)

    torch.jit.save_jit_module_to_flatbuffer(script, str(tmp_path / "flat"))
    assert torch.equal(torch.jit.jit_module_from_flatbuffer(str(tmp_path / "flat")).weight, expected)
    buffer = io.BytesIO()
    torch.jit.save_jit_module_to_flatbuffer(script, buffer)
    assert torch.equal(torch.jit.jit_module_from_flatbuffer(io.BytesIO(buffer.getvalue())).weight, expected)

    monkeypatch.setattr("torch.package.package_exporter._gate_torchscript_serialization", False)
    with PackageExporter(tmp_path / "package") as exporter:
        exporter.save_pickle("models", "script.pkl", script)
    assert torch.equal(PackageImporter(tmp_path / "package").load_pickle("models", "script.pkl").weight, expected)


def test_a_script_of_the_host_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    script = scripted(Many())
    monkeypatch.setattr("copy.deepcopy", None)
    assert saved(script).getvalue() and saved(torch.jit.trace(lambda x: x + 1, torch.ones(2))).getvalue()
    with pytest.raises(TypeError):
        saved(scripted(on("xla", Many())))


def test_a_location_that_is_none_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="map_location should be either None, string or torch.device"):
        torch.jit.load(saved(scripted(nn.Linear(1, 1))), map_location={})  # type: ignore[arg-type]
