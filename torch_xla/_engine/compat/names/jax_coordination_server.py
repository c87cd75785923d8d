"""The coordination service as a program of its own, started by `jax_coordination.serve`.

It outlives every process of the program, so the others can report a lost one. It imports only XLA, and prints the
address on which it listens, or why it cannot. It ends after the process that started it has ended and no connection is
left.
"""

import json
import signal
import socket
import sys
import time

from jaxlib import _jax

# A port is chosen and then bound: another program may take it in between.
_ATTEMPTS = 8
# Seconds after the last connection until it ends. A process that has just started may not be connected yet.
_PATIENCE = 5
_ESTABLISHED = "01"


def main(host: str, wanted: int, count: int, heartbeat: int, start: int, tls: dict[str, str]) -> None:
    """Serve `count` processes at `host`, on the port `wanted` or, if that is 0, on a free one. Times in seconds.

    `tls` has JAX's options of mutual TLS; without them it authenticates no client.
    """
    # A signal to all processes of a terminal or group is meant for the others; this process ends after them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attempts, port, service = 0, 0, None
    while service is None:
        attempts += 1
        try:
            port = _free_port(host, wanted)
            # Its tasks are recoverable: else a lost one would end all others by SIGABRT.
            service = _jax.get_distributed_runtime_service(
                f"{host}:{port}",
                count,
                heartbeat_timeout=heartbeat,
                cluster_register_timeout=start,
                recoverable=True,
                **tls,
            )
        except (OSError, RuntimeError) as error:
            if wanted or attempts == _ATTEMPTS:
                print(f"error {host}:{wanted}: {error}", flush=True)
                return
    print(f"{host}:{port}", flush=True)
    sys.stdin.read()  # until the process that started this one ends
    idle = 0
    while idle < _PATIENCE:
        time.sleep(1)
        idle = 0 if _is_used(port) else idle + 1
    service.shutdown()


def _free_port(host: str, wanted: int) -> int:
    # Several services can share a port if each allows it, as this one does, and each would get some of the processes.
    # So bind a socket that does not allow sharing to check that the port is free.
    with socket.socket() as probe:
        probe.bind((host, wanted))
        return int(probe.getsockname()[1])


def _is_used(port: int) -> bool:
    ends = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as lines:
                ends += [line.split()[1:4:2] for line in lines]
        except OSError:
            continue
    return [f"{port:04X}", _ESTABLISHED] in [[local.rpartition(":")[2], state] for local, state in ends]


if __name__ == "__main__":
    _host, *_numbers, _tls = sys.argv[1:]
    _wanted, _count, _heartbeat, _start = map(int, _numbers)
    main(_host, _wanted, _count, _heartbeat, _start, json.loads(_tls))
