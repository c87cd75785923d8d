"""Which process this is, of how many: one alone. Asked for often, so nothing here starts a client."""


def process_count() -> int:
    """How many processes take part in the program."""
    return 1


def local_process_count() -> int:
    """How many of them run on this machine."""
    return 1


def process_index() -> int:
    """Which of them this is."""
    return 0


def host_index() -> int:
    """Which machine this is, of those that take part."""
    return 0


def replica_count() -> int:
    """How many devices run the same program on different data."""
    return 1


def replica_index() -> int:
    """Which of them this thread's device is."""
    return 0


def local_replica_index() -> int:
    """Which of them this thread's device is, counted on this machine."""
    return 0


def coordinator_address() -> str:
    """Where the first process runs."""
    return "127.0.0.1"
