"""Optimizers that read on the device whether to skip a step, so that the host does not wait for the answer."""

from .adam import Adam as Adam
from .adamw import AdamW as AdamW
from .sgd import SGD as SGD
