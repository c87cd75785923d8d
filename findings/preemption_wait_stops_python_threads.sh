#!/usr/bin/env bash
# Where JAX's processes agree on the step before a preemption, the wait stops every Python thread of the process.
#
# After SIGTERM, `multihost_utils.reached_preemption_sync_point(step)` returns true at one step in all processes. While
# they agree, the call waits in C++ for the other processes, and holds Python's global lock meanwhile. So no other
# thread of the process runs: no data loader, no logger, no heartbeat. If one of these threads is what carries messages
# between the processes, nobody gets an answer. Here process 1 is stopped for some seconds while process 0 is told
# of the preemption; a thread of process 0 that notes the time every millisecond has a gap of seconds. The
# client's other waits, such as `blocking_key_value_get`, release the lock: the same stop leaves no gap.
#
# Output seen:
#   jax 0.10.2
#   longest pause of a thread while a key is awaited: below 0.5 s
#   longest pause of a thread while a step is agreed: above 1 s
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$folder/process.py" <<'PYTHON'
import os
import signal
import sys
import threading
import time

import jax
from jax._src import distributed
from jax.experimental import multihost_utils

index, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"localhost:{port}", 2, index)
client = distributed.global_state.client
ticks = [time.monotonic()]


def tick():
    while True:
        time.sleep(0.001)
        ticks.append(time.monotonic())


def longest_pause():
    """Return the longest time between two ticks since the last call, in seconds."""
    global ticks
    seen, ticks = ticks, [time.monotonic()]
    return max((later - earlier for earlier, later in zip(seen, seen[1:])), default=0.0)


if index == 1:
    client.key_value_set("pid", str(os.getpid()))
    time.sleep(1)
    client.key_value_set("key", "value")
    step = 0
    while not multihost_utils.reached_preemption_sync_point(step):
        step += 1
        time.sleep(0.02)
    client.key_value_set("last", str(step))
else:
    threading.Thread(target=tick, daemon=True).start()
    other = int(client.blocking_key_value_get("pid", 60_000))
    longest_pause()
    os.kill(other, signal.SIGSTOP)
    threading.Timer(2, os.kill, (other, signal.SIGCONT)).start()
    client.blocking_key_value_get("key", 60_000)
    awaited = longest_pause()
    os.kill(other, signal.SIGSTOP)
    os.system(f"(sleep 6; kill -CONT {other}) &")  # another process wakes it: a thread of this one could not
    os.kill(os.getpid(), signal.SIGTERM)
    step = 0
    while not multihost_utils.reached_preemption_sync_point(step):
        step += 1
        time.sleep(0.02)
    agreed = longest_pause()
    print(f"jax {jax.__version__}")
    print("longest pause of a thread while a key is awaited:", "below 0.5 s" if awaited < 0.5 else f"{awaited:.1f} s")
    print("longest pause of a thread while a step is agreed:", "above 1 s" if agreed > 1 else f"{agreed:.1f} s")
    assert awaited < 0.5 and agreed > 1, "the behaviour has changed"
    assert client.blocking_key_value_get("last", 60_000) == str(step)
PYTHON
port=$("$folder/venv/bin/python" -c "import socket; s = socket.socket(); s.bind(('localhost', 0)); print(s.getsockname()[1])")
export JAX_PLATFORMS=cpu
"$folder/venv/bin/python" "$folder/process.py" 1 "$port" 2>"$folder/errors" &
if ! "$folder/venv/bin/python" "$folder/process.py" 0 "$port" 2>"$folder/errors0"; then
  cat "$folder/errors0" "$folder/errors"
  exit 1
fi
wait
