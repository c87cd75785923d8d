"""timm's training script, written with timm's own parts, on scikit-learn's handwritten digits as a folder of pictures.

    python examples/frameworks/timm_training.py

Data set and loader with augmentation and random erasing, Mixup, a small vision transformer in a task, clipping, timm's
optimizer and schedule, a moving average, its evaluation after each epoch, a summary, and checkpoints, the best of them
loaded at the end. The loader does not prefetch: timm's prefetching records a batch with the step before it, so that the
first and the last step of an epoch would be other programs.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import timm
import torch
from beside_cpu import Steps, compare
from PIL import Image
from sklearn.datasets import load_digits
from timm.data import Mixup, create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import ClassificationTask
from timm.utils import AverageMeter, CheckpointSaver, dispatch_clip_grad, random_seed, update_summary

import torch_xla

BATCH = 32
EPOCHS = 2
UPDATES = 10  # of each epoch
SIZE = (1, 32, 32)
SMALL = {"img_size": 32, "patch_size": 8, "in_chans": 1, "num_classes": 10, "embed_dim": 48, "depth": 2, "num_heads": 3}
PICTURES = {"input_size": SIZE, "batch_size": BATCH, "mean": (0.5,), "std": (0.5,), "num_workers": 0,
            "interpolation": "bilinear", "use_prefetcher": False}  # fmt: skip


def write_pictures(folder: Path) -> None:
    """One folder for each digit, as timm's reader wants them."""
    data = load_digits()
    for split, first, count in (("train", 0, BATCH * UPDATES), ("validation", 1500, 4 * BATCH)):
        for number in range(first, first + count):
            at = folder / split / str(data.target[number])
            at.mkdir(parents=True, exist_ok=True)
            Image.fromarray((data.images[number] * 15.9).astype("uint8")).resize((32, 32)).save(at / f"{number}.png")


def loader(folder: Path, split: str, **more) -> Iterable:
    return create_loader(create_dataset("", root=str(folder), split=split, input_img_mode="L"), **PICTURES, **more)


def train_one_epoch(task, batches, mixup, optimizer, schedule, first: int, steps: Steps) -> dict[str, float]:
    losses = AverageMeter()
    task.train()
    for number, batch in enumerate(batches, first):
        images, targets = mixup(*(each.to(task.device) for each in batch))
        loss = task(images, targets)["loss"]
        loss.backward()
        dispatch_clip_grad(task.get_clip_parameters(), 1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        task.update_ema(step=number)
        schedule.step_update(number + 1)
        torch_xla.sync()
        steps.ended(loss)
        losses.update(loss.item(), len(images))
    return {"loss": losses.avg}


@torch.no_grad()
def validate(task, batches) -> dict[str, float]:
    model = task.get_eval_model(ema=True).eval()
    evaluator = task.create_evaluator()
    for images, targets in batches:
        evaluator.update(model(images.to(task.device)), targets.to(task.device))
        torch_xla.sync()
    return evaluator.compute()


def train(device: str, steps: Steps) -> dict[str, float]:
    random_seed(0)
    where = torch.device(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder)
        mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=10)
        training = loader(folder, "train", is_training=True, re_prob=0.25, hflip=0.0, scale=(0.7, 1.0))
        held_out = loader(folder, "validation")
        task = ClassificationTask(timm.create_model("vit_tiny_patch16_224", **SMALL).to(where), device=where,
                                  criterion_kwargs={"soft_targets": True}, verbose=False)  # fmt: skip
        optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=5e-3, weight_decay=0.05)
        task.setup_ema(decay=0.9, use_warmup=True)
        schedule, epochs = create_scheduler_v2(optimizer, "cosine", num_epochs=EPOCHS, warmup_epochs=0,
                                               updates_per_epoch=UPDATES, step_on_epochs=False)  # fmt: skip
        saver = CheckpointSaver(task.get_trainable_module(), optimizer, model_ema=task.get_trainable_module(ema=True),
                                checkpoint_dir=name, max_history=1)  # fmt: skip
        found = {}
        for epoch in range(epochs):
            trained = train_one_epoch(task, training, mixup, optimizer, schedule, epoch * UPDATES, steps)
            with steps.apart():
                metrics = validate(task, held_out)
                schedule.step(epoch + 1, metrics["top1"])
                update_summary(epoch, trained, metrics, str(folder / "summary.csv"), write_header=epoch == 0)
                best, _ = saver.save_checkpoint(epoch, metric=metrics["top1"])
            found |= {f"loss of epoch {epoch}, held out": metrics["loss"], f"top-1 of epoch {epoch}": metrics["top1"]}
        saved = torch.load(folder / "model_best.pth.tar", map_location="cpu", weights_only=False)
        task.load_checkpoint_state(saved["state_dict_ema"], ema=True)
        assert validate(task, held_out)["top1"] == best
    return found


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
