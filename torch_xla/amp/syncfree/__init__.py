"""Optimizers that are told on the device whether to skip a step, so that nobody waits for the answer."""

from .adam import Adam as Adam
from .adamw import AdamW as AdamW
from .sgd import SGD as SGD
