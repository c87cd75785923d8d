#!/usr/bin/env bash
# JAX loses a Ctrl-C that comes while Python collects garbage.
#
# `import jax` appends a function written in Python to `gc.callbacks`. Python raises an interrupt where a function of
# Python's begins, and prints and drops whatever a callback of the collector raises. So a Ctrl-C that is pending when a
# collection begins is raised inside JAX's callback, is printed as "Exception ignored in", and never reaches the
# program: its loop goes on. Without JAX the same interrupt stops the loop.
#
# The script makes the interrupt pending from C as the collection begins, by the first callback of the list.
#
# Seen with jax 0.10.2 and jaxlib 0.10.2 on Python 3.11:
#   without jax: raised 20 of 20
#   with jax 0.10.2: raised 0 of 20, ignored in _xla_gc_callback: 20
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2

cat > "$folder/program.py" <<'PYTHON'
import _thread, functools, gc, operator, sys

class Sends:
    send = staticmethod(_thread.interrupt_main)  # what Ctrl-C does: the handler runs where Python looks next
    start = property(operator.methodcaller("send"))

def count():
    raised, ignored = 0, []
    sys.unraisablehook = lambda what: ignored.append(what.object.__name__)
    gc.disable()
    sends = functools.partial(getattr, Sends())  # called with the phase and a dict: no function of Python's
    for _ in range(20):
        gc.callbacks.insert(0, sends)
        try:
            gc.collect()
        except KeyboardInterrupt:
            raised += 1
        finally:
            gc.callbacks.remove(sends)
    return raised, ignored

raised, ignored = count()
print(f"without jax: raised {raised} of 20")
assert raised == 20 and not ignored
import jax
raised, ignored = count()
print(f"with jax {jax.__version__}: raised {raised} of 20, ignored in {', '.join(sorted(set(ignored)))}: {len(ignored)}")
assert raised == 0 and ignored == ["_xla_gc_callback"] * 20, "the behaviour has changed"
PYTHON

"$folder/venv/bin/python" "$folder/program.py"
