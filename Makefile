# What can be done here: `make demo`, `make test`, `make fast`, `make thorough`, `make gpu`,
# `make lint`, `make docs`, `make setup`.
SHELL := /bin/bash
PYTHON := .venv/bin/python
SCRIPTS = $(shell find local tools egs -name '*.sh') .ci/run

.PHONY: demo test fast thorough gpu lint docs setup dev

# Train and score on synthetic telephone speech, from nothing, on a laptop.
demo: setup
	egs/mini_swbd/asr1/run.sh

# Everything a change must pass. PYTEST_ARGS picks tests.
test: dev lint
	tools/install_tools.sh
	$(PYTHON) -m pytest -n 2 --dist loadfile -m "not users and not thorough" $(PYTEST_ARGS)

# The tests of one process, in a few minutes; `pytest --markers` lists the other kinds.
fast: dev
	$(PYTHON) -m pytest -n 2 --dist loadfile -m fast $(PYTEST_ARGS)

# What takes longest: schedules by the thousand, the cases of a sweep of which `make test` has
# one of each sort, and trainings beside what users of ESPnet have (transformers, wandb and more).
thorough:
	tools/setup.sh --users
	$(PYTHON) -m pytest -m "users or thorough" $(PYTEST_ARGS)

# All that a GPU can tell, in eight minutes, and the table of docs/gpu.md. With WHEELS=folder
# nothing is set up: it takes the Python that is there, and these wheels. OUT=folder has the
# results, FSDD=folder has real speech, and DEVICE=cpu tries the command.
gpu: $(if $(WHEELS),,dev)
	$(if $(WHEELS),python3,$(PYTHON)) tools/gpu.py

lint: dev
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy -p espnet_distopt
	PATH=".venv/bin:$$PATH" shellcheck -x -P SCRIPTDIR $(SCRIPTS)

# The documentation site, in build/site.
docs: dev
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

# The environment .venv: for the recipes, and for development.
setup:
	tools/setup.sh

dev:
	tools/setup.sh --dev
