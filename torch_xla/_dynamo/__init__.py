"""The package in which programs look for the bridge between Dynamo and XLA."""

from . import config as config
