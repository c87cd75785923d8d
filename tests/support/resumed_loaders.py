"""A program that saves the state of loaders of torchdata and Grain in the middle of an epoch, and resumes them."""

import itertools
import pickle
import sys
import time
from typing import Any

import torch

import torch_xla.distributed.parallel_loader as pl

SIZES = [(1, 1), (2, 8), (16, 8)]


def around(loader: Any, ahead: int, on_device: int) -> pl.MpDeviceLoader:
    return pl.MpDeviceLoader(loader, "xla", loader_prefetch_size=ahead, device_prefetch_size=on_device)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


def torchdata(workers: int, shuffle: bool, sizes: tuple[int, int]) -> list[int]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return StatefulDataLoader(list(range(100)), batch_size=4, num_workers=workers, shuffle=shuffle)

    ours = around(loader(), *sizes)
    first = numbers(itertools.islice(ours, 3))
    time.sleep(0.1)  # for the threads, that read ahead
    state = pickle.loads(pickle.dumps(ours.state_dict()))
    resumed, theirs = around(loader(), *sizes), loader()
    resumed.load_state_dict(state), theirs.load_state_dict(state)
    rest = numbers(resumed)
    assert rest == numbers(theirs), (rest, state)
    assert sorted(first + rest) == list(range(100)), (first, rest)
    return rest[:4]


def grain(form: str, sizes: tuple[int, int]) -> list[int]:
    import grain as library

    def iterator() -> Any:
        if form == "dataset":
            return iter(library.MapDataset.range(100).batch(4).to_iter_dataset())
        source, sampler = library.sources.RangeDataSource(0, 100, 1), library.samplers.SequentialSampler(100)
        batch = [library.transforms.Batch(4)]
        return iter(library.DataLoader(data_source=source, sampler=sampler, operations=batch))

    ours = around(iterator(), *sizes)
    batches = iter(ours)
    taken = [next(batches).tolist() for _ in range(3)]
    time.sleep(0.1)
    state = ours.get_state()
    resumed = iterator()
    resumed.set_state(state)
    rest = next(resumed).tolist()
    ours.set_state(state)
    assert taken[-1] == [8, 9, 10, 11] and next(batches).tolist() == rest
    return rest


def main() -> None:
    for sizes in SIZES:
        if sys.argv[1] == "torchdata":
            for workers, shuffle in itertools.product((0, 2), (False, True)):
                torch.manual_seed(0)
                print("resumed", torchdata(workers, shuffle, sizes))
        else:
            for form in ("dataset", "loader"):
                print("resumed", grain(form, sizes))


if __name__ == "__main__":
    main()
