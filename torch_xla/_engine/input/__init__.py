"""Input: load batches on the host and upload them to the devices ahead of their use.

Doors: none.
"""

from .closable_queues import KeydQueue, Queue, QueueBase
from .device_loader import Exhausted, InTurn, PerDeviceQueue, Pipeline, place_batch, tells_its_place
from .resumable_loaders import NAMES as STATE_NAMES
from .resumable_loaders import AnotherLoop, ReadAhead
from .resumable_loaders import answer as answer_for_state
