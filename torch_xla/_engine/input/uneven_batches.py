"""Count batches that the devices cannot share evenly and that are padded in memory."""

from .. import metrics

counter = metrics.counter("UnevenInput")
