"""Queues between threads that can be closed.

>>> from torch_xla.utils.keyd_queue import KeydQueue, Queue
>>> queue = Queue(maxsize=4)
>>> queue.put("first")
>>> queue.close_write()
>>> queue.get(), queue.get()
('first', None)
>>> keyed = KeydQueue()
>>> keyed.put("b", 2)
>>> keyed.put("a", 1)
>>> keyed.get("a"), keyed.get("b")
(1, 2)
"""

from .._engine.input import KeydQueue as KeydQueue
from .._engine.input import Queue as Queue
from .._engine.input import QueueBase as QueueBase
