"""The two ends of a point-to-point channel."""

import functools

from .. import config
from ..errors import PeerError
from ..processes import coordination, identity


@functools.cache
def partners(channel: int, sends: bool) -> tuple[int, int]:
    """Return the sender and the receiver of a channel; wait until the other process has joined it."""
    own, connection = identity.process_index(), coordination.client()
    here = f"channel/{channel}"
    if connection is None:
        raise RuntimeError(f"channel {channel} needs two processes, and this program has one")
    connection.key_value_set(f"torch_xla/{here}/{'sender' if sends else 'receiver'}", str(own))
    seconds = config.rendezvous_seconds()
    try:
        there = f"{here}/{'receiver' if sends else 'sender'}"
        others = [index for index in range(identity.process_count()) if index != own]
        what = f"{'receive' if sends else 'send'} on channel {channel}"
        other = int(coordination.awaited_of(others, there, seconds, what))
    except TimeoutError as error:
        raise PeerError(
            f"Process {own} waited {seconds} s for another to {'receive' if sends else 'send'} on channel {channel}."
        ) from error
    return (own, other) if sends else (other, own)
