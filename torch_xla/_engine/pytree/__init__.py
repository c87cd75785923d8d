"""Pytree: find or replace tensors and other objects inside nested Python structures.

Doors: instances, nested.
"""

from .instances import DataWrapper, rewrite, visit
from .nested import ToXlaTensorArena
from .nested import collected as collected_tensors
from .nested import replaced as with_tensors_replaced
