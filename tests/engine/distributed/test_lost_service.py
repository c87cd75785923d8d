"""If the coordination service is killed, each process raises an error, and none crashes or waits for ever.

One process is inside a collective on the device, one waits for an answer of the service to a new collective, and one
does something else.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.distributed.test_failures import settings

PROGRAM = """
import os, pathlib, signal, sys, threading, time
import torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def service():
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_text()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if "jax_coordination_server.py" in said and parent == os.getppid():
            return int(folder.name)

def come(name, folder, everyone):
    "Say that this process has come here, and wait until all of these have."
    open(f"{folder}.{name}-{everyone[0]}", "w").close()
    while not all(os.path.exists(f"{folder}.{name}-{each}") for each in everyone):
        time.sleep(0.02)

def tell_when_inside(module, index, folder):
    "Say that the main thread is in a function of this module, where it waits."
    main = threading.main_thread().ident
    def look():
        seen = 0
        while seen < 20:  # for a second
            frame, files = sys._current_frames()[main], []
            while frame is not None:
                files.append(frame.f_code.co_filename)
                frame = frame.f_back
            seen = seen + 1 if any(file.endswith(module) for file in files) else 0
            time.sleep(0.05)
        come("inside", folder, [index])
    threading.Thread(target=look, daemon=True).start()

def reach(index, folder):
    "Bring this process to its place, and return what it runs there."
    x = torch.ones(4, device="xla")
    for _ in range(6):  # from the third on, no process asks the others before it
        xm.all_reduce(xm.REDUCE_SUM, x).tolist()
    come("ready", folder, [index, *{0, 1, 2} - {index}])
    if index == 2:
        os.kill(service(), signal.SIGSTOP)  # it answers no more
        come("stopped", folder, [2])
        come("inside", folder, [2, 0, 1])
        os.kill(service(), signal.SIGKILL)
        time.sleep(5)
        return x, x
    come("waits", folder, [index])
    while not os.path.exists(f"{folder}.stopped-2"):
        time.sleep(0.02)
    tell_when_inside("waits_among_processes.py" if index == 0 else "collective_consistency.py", index, folder)
    return x, x if index == 0 else torch.ones(5, device="xla")

def main(index, folder):
    x, sent = reach(index, folder)
    begin = time.monotonic()
    try:
        while True:
            xm.all_reduce(xm.REDUCE_SUM, sent).tolist()
    except RuntimeError as error:
        took = time.monotonic() - begin
        kept = x.tolist()  # what depends on no other process can be read
        time.sleep(2)  # and nothing ends it
        with open(os.path.join(folder, str(index)), "w") as file:
            file.write(f"{took:.1f} {kept} {type(error).__name__}: {error}")
        while len(os.listdir(folder)) < 3 and time.monotonic() - begin < 60:
            time.sleep(0.1)  # the first process that ends has the others ended
        raise

if __name__ == "__main__":
    try:
        xmp.spawn(main, (sys.argv[1],), nprocs=3, start_method="fork")
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_lost_service_is_an_error_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said = tmp_path / "said"
    said.mkdir()
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(said)],
        env=settings(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    raised = {path.name: path.read_text() for path in said.iterdir()}
    assert sorted(raised) == ["0", "1", "2"], result.stdout + result.stderr
    for index, text in raised.items():
        took, rest = text.split(" ", 1)
        assert float(took) < 60  # and not after the time that a collective may take
        assert re.match(
            r"\[1\.0, 1\.0, 1\.0, 1\.0\] PeerError: The service at 127\.0\.0\.1:\d+, by which the processes of the "
            r"program speak, is gone: (it closed the connection|Connection reset by peer)\. Its process was ended, or "
            r"its machine, which is that "
            rf"of process 0, is lost\.\nProcess {index} of 3 raises this at step \d+, \S+program\.py:\d+ in main\.",
            rest,
        ), text
    assert "PeerError: The service at" in result.stdout and "SIGABRT" not in result.stdout + result.stderr
