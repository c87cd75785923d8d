"""Names of the C++ extension and of internal modules that programs of one process use."""

import jax.numpy as jnp
import pytest
import torch

import torch_xla
from torch_xla import _XLAC
from torch_xla._dynamo import dynamo_backend2
from torch_xla._internal import jax_workarounds
from torch_xla._internal.utils import parse_xla_device


def test_a_plain_import_binds_what_programs_reach() -> None:
    paths = (
        "core.xla_model.mark_step", "distributed.parallel_loader.MpDeviceLoader", "amp.syncfree.AdamW",
        "distributed.xla_multiprocessing.spawn", "utils.utils.SampleGenerator", "backends.set_mat_mul_precision",
        "debug.profiler.Trace", "debug.metrics.metrics_report", "runtime.device_type", "experimental.eager_mode",
        "_dynamo.config.skip_input_data_check", "version.__xla_gitrev__", "version.__torch_gitrev__",
    )  # fmt: skip
    for path in paths:
        found = torch_xla
        for name in path.split("."):
            found = getattr(found, name)


@pytest.mark.parametrize(
    "left, right, numbers",
    [
        ((2, 3), (4, 3), (((1,), (1,)), ((), ()))),
        ((5, 2, 3), (5, 3, 4), (((2,), (1,)), ((0,), (0,)))),
        ((2, 3), (4, 3), (((-1,), (-1,)), ((), ()))),
        ((5, 2, 3), (5, 3, 4), (((-1,), (-2,)), ((-3,), (0,)))),
    ],
)
def test_a_general_product_is_that_of_jax(left: tuple[int, ...], right: tuple[int, ...], numbers: object) -> None:
    x, y = torch.randn(left), torch.randn(right)
    found = _XLAC._xla_dot_general(x.to("xla"), y.to("xla"), numbers)  # type: ignore[arg-type]
    expected = x @ y.t() if len(left) == 2 else x @ y
    torch.testing.assert_close(found.cpu(), expected)
    wide = _XLAC._xla_dot_general(
        x.to("xla").bfloat16(),
        y.to("xla").bfloat16(),
        numbers,
        "default",
        torch.float32,  # type: ignore[arg-type]
    )
    assert wide.dtype is torch.float32


def test_a_tensor_can_be_replaced() -> None:
    x, y = torch.zeros(2, 3, device="xla"), torch.arange(4.0, device="xla")
    assert _XLAC._replace_xla_tensor(x, y) is x
    assert x.tolist() == [0, 1, 2, 3]
    y.add_(1)
    assert x.tolist() == [1, 2, 3, 4]  # one memory


def test_sizes_and_seeds_are_tensors_on_the_device() -> None:
    size = _XLAC._get_xla_tensor_dimension_size(torch.ones(2, 5, device="xla"), 1)
    assert size.item() == 5 and size.dtype is torch.int32 and size.device.type == "xla"
    torch_xla.manual_seed(11)
    assert _XLAC._get_base_seed_as_tensor("xla:0").item() == 11


def test_physical_names_are_taken_apart() -> None:
    assert parse_xla_device(torch_xla.real_devices()[0])[1] == 0
    with pytest.raises(ValueError, match="expected a name such as 'CPU:0'"):
        parse_xla_device("xla:0")


def test_jax_needs_no_workaround() -> None:
    @jax_workarounds.requires_jax
    def double(x: float) -> float:
        return float(jnp.multiply(x, 2))

    with jax_workarounds.jax_env_context():
        assert double(2.0) == 4.0
    assert jax_workarounds.maybe_get_jax() is not None and jax_workarounds.maybe_get_torchax() is None


def test_the_second_backend_is_the_first() -> None:
    model = torch.nn.Linear(3, 2).to("xla")
    compiled = torch.compile(model, backend=dynamo_backend2.dynamo_backend)
    x = torch.randn(4, 3).to("xla")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())


def test_a_session_counts_its_graphs() -> None:
    def session(size: int) -> None:
        _XLAC._dynamic_shape_detector_start_session("counts")
        torch.ones(size, device="xla").add_(1)
        kept.append(torch.arange(size, device="xla") * 2)
        _XLAC._dynamic_shape_detector_end_session()

    kept: list[torch.Tensor] = []
    assert _XLAC._dynamic_shape_detector_get_max_num_different_graphs_allowed() == 1
    _XLAC._dynamic_shape_detector_set_max_num_different_graphs_allowed(2)
    try:
        for size in (2, 3, 2, 3):
            session(size)
        with pytest.raises(RuntimeError, match="counts: 2 different graphs were allowed.*recorded graph number 3"):
            session(4)
        assert kept[-1].tolist() == [0, 2, 4, 6]  # what was recorded has run
        _XLAC._dynamic_shape_detector_remove_session("counts")
        session(4)
    finally:
        _XLAC._dynamic_shape_detector_set_max_num_different_graphs_allowed(1)
    with pytest.raises(RuntimeError, match="no session was started"):
        _XLAC._dynamic_shape_detector_end_session()
    with pytest.raises(KeyError):
        _XLAC._dynamic_shape_detector_remove_session("none")
