# `make demo` and `make test` do everything from a fresh clone; each makes .venv first if there is none.
VENV := .venv
PYTHON ?= $(if $(shell command -v python3),python3,uv run -q --no-project --python ">=3.11,<3.15" python)
RUN := $(VENV)/bin/python
READY := $(VENV)/ready
# Transformers and the other frameworks lie apart, so that what they bring along is not what `make test` tests.
FRAMEWORKS := .venv-frameworks
ARGS ?=
# Tests start hundreds of processes: without bytecode each of them would compile the package, for a second.
export PYTHONDONTWRITEBYTECODE :=
# How many processes run the tests: one more than there are cores, because some wait for others' processes and for clocks.
JOBS ?= 3

.PHONY: help demo test test-devices test-slow test-frameworks check docs

help:
	@echo "make demo        train a small network on the xla device and draw what it learned"
	@echo "make test        format, lint, types, tests     (ARGS='tests/house -k imports' for some of the tests)"
	@echo "make test-slow   the tests that take minutes"
	@echo "make test-devices compile for TPUs and GPUs that are not here (ARGS='models --on v6e,h100')"
	@echo "make test-frameworks  Transformers, Accelerate and others on xla beside the CPU, in $(FRAMEWORKS)"
	@echo "make check       format, lint, types            (ARGS=--fix to repair)"
	@echo "make docs        the documents as a site, out/site/index.html"
	@echo "All use $(VENV), made by the first call. PYTHON=... chooses its interpreter, 3.11 or newer."

demo: $(READY)
	@mkdir -p out
	@$(RUN) examples/digits.py --out out/digits.png $(ARGS)
	@echo "The picture is $(CURDIR)/out/digits.png"

test: $(READY)
	@$(RUN) tools/check.py -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: $(READY)
	@$(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "slow and not exhaustive" -o faulthandler_timeout=1500 $(ARGS)

test-frameworks: $(FRAMEWORKS)/ready
	@$(FRAMEWORKS)/bin/python -m pytest tests/test_frameworks.py tests/test_notebooks.py -m frameworks $(ARGS)

test-devices: $(READY)
	@$(RUN) -m tests.devices $(ARGS)

docs: $(READY)
	@$(RUN) -m sphinx -q -W -b html docs out/site
	@echo "The site is $(CURDIR)/out/site/index.html"

check: $(READY)
	@$(RUN) tools/check.py $(ARGS)

$(READY): pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py $(VENV)
	@touch $@

$(FRAMEWORKS)/ready: pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py $(FRAMEWORKS) test,frameworks
	@touch $@
