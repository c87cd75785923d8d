"""Steps that are run through in one call: no interrupt comes between them, and garbage is collected before or after."""

import _thread
import gc
import signal
import subprocess
import sys
import threading
from itertools import chain, starmap
from types import SimpleNamespace

import pytest

from torch_xla._engine.atomic import run_through, stores, uncollected, without_collecting


def test_who_ends_first_leaves_the_garbage_to_who_ends_last() -> None:
    begun, end, seen = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        end.wait(60)

    other = threading.Thread(target=uncollected(first))
    assert gc.isenabled()

    def second() -> None:
        other.start()
        begun.wait(60)
        uncollected(lambda: seen.append(gc.isenabled()))()
        seen.append(gc.isenabled())

    uncollected(second)()
    seen.append(gc.isenabled())  # the other thread is still inside
    end.set()
    other.join()
    assert seen == [False] * 3 and gc.isenabled()


@pytest.mark.parametrize("was_on", [True, False])
def test_whether_garbage_is_collected_is_afterwards_as_the_program_has_it(was_on: bool) -> None:
    def fails() -> None:
        assert not gc.isenabled()
        raise KeyboardInterrupt

    try:
        if not was_on:
            gc.disable()
        with pytest.raises(KeyboardInterrupt):
            uncollected(uncollected(fails))()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def test_an_interrupt_comes_behind_the_last_step() -> None:
    done: list[int] = []
    steps = chain(map(done.append, [1]), starmap(_thread.interrupt_main, [()]), map(done.append, [2, 3]))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's job in the background ignores
    try:
        with pytest.raises(KeyboardInterrupt):
            run_through(steps)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [1, 2, 3]


def test_attributes_are_set_when_they_are_run_through_and_not_before() -> None:
    objects = [SimpleNamespace(name=0), SimpleNamespace(name=0)]
    steps = stores(objects, "name", [1, 2])
    assert [each.name for each in objects] == [0, 0]
    run_through(steps)
    assert [each.name for each in objects] == [1, 2]


def test_no_garbage_is_collected_in_the_middle() -> None:
    seen: list[bool] = []
    without_collecting(map(seen.append, starmap(gc.isenabled, [(), ()])))
    assert seen == [False, False] and gc.isenabled()


TAKEN = """
import random, signal
from torch_xla._engine.atomic import lock

class Alarm(KeyboardInterrupt): pass

def arrive(*_): raise Alarm

def take(held):
    while True:
        for _ in range(100):
            with held: pass

signal.signal(signal.SIGALRM, arrive)
chance, held, left = random.Random(0), lock(), 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-4))
        take(held)
    except Alarm:
        pass
    while held._is_owned():
        left += 1
        held.release()
with held, held:  # it can be taken more than once
    print(left, held._is_owned())
"""


def test_no_interrupt_leaves_a_lock_taken() -> None:
    # In a process without Dynamo, whose evaluation of frames has Python 3.14 look for interrupts once more.
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0 True\n", done.stdout + done.stderr


# Threads call functions with frames of different sizes, while garbage is collected between the frames of two of them.
FRAMES = """
import gc, sys, threading, time
from torch_xla._engine.atomic import frames_of_threads

functions = []
for size in range(1, 12):
    names = [f"a{number}" for number in range(size)]
    following = f"functions[(7 * n + {size}) % 11](n - 1)"
    exec(f"def call(n, {'=0, '.join(names)}=0):\\n {' = '.join(names)} = 3\\n {following} if n else time.sleep(0)")
    functions.append(call)

def run():
    while True:
        for n in range(20):
            functions[n % 11](n)

gc.callbacks.append(lambda phase, info: time.sleep(0.001))
for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
for number in range(500):
    gc.set_threshold(2 + number % 5)
    found = frames_of_threads()
    gc.set_threshold(0)
    assert threading.get_ident() in found and len(found) == 4
    del found
    time.sleep(0)
print("taken")
"""


def test_frames_of_threads_are_taken_while_these_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", FRAMES], capture_output=True, text=True, timeout=300)
    assert done.stdout == "taken\n", f"{done.returncode} {done.stderr}"
