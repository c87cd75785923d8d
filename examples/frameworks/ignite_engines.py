"""ignite in two processes: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/ignite_engines.py

`idist` starts the processes and divides the batches; a trainer, an evaluator with metrics over all processes, and a
checkpoint of the best of them, which is loaded again.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

PROCESSES = 2
BATCH = 64
IMAGES = 10 * BATCH


def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    with idist.Parallel(backend="xla-tpu", nproc_per_node=PROCESSES) as parallel:
        parallel.run(function, *args)


def loader(data: Dataset) -> DataLoader:
    """Return batches that are divided among the processes: together they are those of one process."""
    return idist.auto_dataloader(data, batch_size=BATCH, shuffle=False)


def train(device: str, steps: Steps) -> dict[str, float]:
    folder = tempfile.TemporaryDirectory()
    if device == "cpu":  # where torch_xla is installed, ignite takes xla unless another backend is there
        idist.initialize("gloo", init_method=f"file://{folder.name}/meeting", rank=0, world_size=1)
    assert idist.device().type == device

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    training = loader(TensorDataset(images[:IMAGES], labels[:IMAGES]))
    held_out = loader(TensorDataset(images[-4 * BATCH :], labels[-4 * BATCH :]))
    model = idist.auto_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy, idist.device(),
                                        output_transform=lambda x, y, y_pred, loss: loss)  # fmt: skip
    metrics = {
        "accuracy": Accuracy(),
        "loss": Loss(F.cross_entropy),
    }  # on the CPU: ignite refuses an xla device for them
    evaluator = create_supervised_evaluator(model, metrics, idist.device())
    shared = idist.broadcast(folder.name, src=0)
    # With `atomic`, each process would replace the first one's file by its own, but only the first one has contents.
    saver = DiskSaver(shared, require_empty=False, atomic=False)
    best = Checkpoint({"model": model}, saver, n_saved=1, score_name="accuracy",
                      score_function=lambda engine: engine.state.metrics["accuracy"])  # fmt: skip

    accuracies: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine: Engine) -> None:
        steps.ended(idist.all_reduce(engine.state.output.detach().clone()) / idist.get_world_size())

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine) -> None:
        with steps.apart():
            evaluator.run(held_out)
        accuracies.append(evaluator.state.metrics["accuracy"])

    evaluator.add_event_handler(Events.COMPLETED, best)
    trainer.run(training, max_epochs=2)
    found = {"accuracy": evaluator.state.metrics["accuracy"], "loss of the held out": evaluator.state.metrics["loss"]}

    (saved,) = Path(shared).glob("*.pt")
    Checkpoint.load_objects({"model": model}, {"model": torch.load(saved, map_location="cpu")})
    idist.barrier()  # until all have read it
    evaluator_of_saved = create_supervised_evaluator(model, {"accuracy": Accuracy()}, idist.device())
    evaluator_of_saved.run(held_out)
    assert evaluator_of_saved.state.metrics["accuracy"] == max(accuracies)
    return found


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
