"""What counters and metrics were called before: programs that ask by an old name get what has taken its place."""

_SUCCESSORS = {
    "CachedSyncTensors": "CachedCompile",
    "TransferFromServerTime": "TransferFromDeviceTime",
    "TransferToServerTime": "TransferToDeviceTime",
    "TransferToServerTransformTime": "TransferToDeviceTransformTime",
}


def current(name: str) -> str:
    """The name under which something is counted or sampled today."""
    return _SUCCESSORS.get(name, name)
