"""Who is at the two ends of a channel."""

import functools

from .. import config
from ..client import coordination, processes


@functools.cache
def partners(channel: int, sends: bool) -> tuple[int, int]:
    """The sender and the receiver of a channel, of which this process is one; waits for the other to say so."""
    own, connection = processes.process_index(), coordination.client()
    here = f"torch_xla/channel/{channel}"
    if connection is None:
        raise RuntimeError(f"channel {channel} needs two processes, and this program has one")
    connection.key_value_set(f"{here}/{'sender' if sends else 'receiver'}", str(own))
    seconds = config.rendezvous_seconds()
    try:
        other = int(connection.blocking_key_value_get(f"{here}/{'receiver' if sends else 'sender'}", 1000 * seconds))
    except RuntimeError as error:
        raise coordination.PeerError(
            f"Process {own} waited {seconds} s for another to {'receive' if sends else 'send'} on channel {channel}."
        ) from error
    return (own, other) if sends else (other, own)
