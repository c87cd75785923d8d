"""`DataParallel`: a loop over a loader, and which module it trains."""

from typing import Any

import pytest
import torch

from torch_xla.distributed.data_parallel import DataParallel


def test_the_third_argument_is_the_dimension_of_the_batch_and_keywords_reach_the_loop() -> None:
    def loop(model: Any, loader: Any, device: Any, context: Any, factor: int = 1) -> list[int]:
        return [factor * batch.shape[1] for batch in loader]

    train = DataParallel(torch.nn.Linear(2, 1), ["xla:0"])
    assert train(loop, [torch.ones(2, 3), torch.ones(2, 4)], 1, factor=10) == [[30, 40]]
    assert train(loop, [torch.ones(2, 3), torch.ones(2, 4)], 1, fixed_batch_size=True) == [[3]]
    with pytest.raises(TypeError, match="write fixed_batch_size=True"):
        train(loop, [], True)


def test_without_devices_the_module_itself_is_trained_where_it_is() -> None:
    for device in ("cpu", "xla:0"):
        model = torch.nn.Linear(2, 1, bias=False).to(device)
        train = DataParallel(model, [])
        assert train.models == [model] and train.devices == [torch.device(device)]

        def loop(model: Any, loader: Any, device: Any, context: Any) -> None:
            with torch.no_grad():
                model.weight.fill_(3)

        train(loop, [])
        assert model.weight.tolist() == [[3, 3]]


def test_on_a_device_a_copy_is_trained() -> None:
    model = torch.nn.Linear(2, 1)
    made: list[torch.nn.Module] = []

    def make() -> torch.nn.Module:
        made.append(torch.nn.Linear(2, 1))
        return made[0]

    assert DataParallel(model, ["xla:0"]).models[0] is not model and model.weight.device.type == "cpu"
    assert DataParallel(make, ["xla:0"]).models[0] is not made[0] and made[0].weight.device.type == "cpu"
