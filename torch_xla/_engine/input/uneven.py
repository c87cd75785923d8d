"""Batches that the devices cannot share evenly: they are padded in memory, and counted."""

from .. import metrics

counter = metrics.counter("UnevenInput")
