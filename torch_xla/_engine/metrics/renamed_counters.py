"""Old names of counters and metrics, and the names that replaced them."""

_SUCCESSORS = {
    "CachedSyncTensors": "CachedCompile",
    "TransferFromServerTime": "TransferFromDeviceTime",
    "TransferToServerTime": "TransferToDeviceTime",
    "TransferToServerTransformTime": "TransferToDeviceTransformTime",
}


def current(name: str) -> str:
    """Return the name under which something is counted or sampled today."""
    return _SUCCESSORS.get(name, name)
