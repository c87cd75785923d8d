# `make demo` and `make test` do everything from a fresh clone; each makes .venv first if there is none.
VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin/python
READY := $(VENV)/ready
ARGS ?=
# How many processes run the tests.
JOBS ?= 2

.PHONY: help demo test test-slow check

help:
	@echo "make demo        train a small network on the xla device and draw what it learned"
	@echo "make test        format, lint, types, tests     (ARGS='tests/house -k imports' for some of the tests)"
	@echo "make test-slow   the tests that take minutes"
	@echo "make check       format, lint, types            (ARGS=--fix to repair)"
	@echo "All use $(VENV), made by the first call. PYTHON=... chooses its interpreter, 3.11 or newer."

demo: $(READY)
	@mkdir -p out
	@$(RUN) examples/digits.py --out out/digits.png $(ARGS)
	@echo "The picture is $(CURDIR)/out/digits.png"

test: $(READY)
	@$(RUN) tools/check.py
	@$(RUN) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: $(READY)
	@$(RUN) -m pytest -m slow $(ARGS)

check: $(READY)
	@$(RUN) tools/check.py $(ARGS)

$(READY): pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py $(VENV)
	@touch $@
