"""A callback of the Trainer of Transformers, and of derived trainers, that records steps for a comparison."""

from beside_cpu import Steps
from transformers import TrainerCallback


class Watcher(TrainerCallback):
    """Hands the losses that the Trainer logs to the comparison."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def on_log(self, args, state, control, logs=None, **others) -> None:
        if "loss" in logs:
            self.steps.ended(logs["loss"])
