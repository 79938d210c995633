# Every target sets up its own virtual environment and needs nothing before it but Python >= 3.10 and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
INPUTS := pyproject.toml setup.py constraints.txt src/dynabound/optim/_kernel.c
FAST := not slow and not processes and not ray and not browser and not compile

.PHONY: demo check test bench lint integrations clean

demo: .venv/.lab
	$(BIN)/dynabound reproduce --scale demo --out demo

# Before every commit: style, types and the fast tests, in about two minutes.
check: lint
	$(BIN)/python -m pytest -n 2 -m "$(FAST)"

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: .venv/.dev
	$(BIN)/python benchmarks/step.py

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The examples of docs/integrations.md and more, against the real frameworks. A few minutes to install, a few to run.
integrations: .venv-integrations/.ready
	.venv-integrations/bin/python -m pytest tests/integrations -o addopts="--import-mode=importlib --strict-markers"

# timm without its dependencies, and torchvision in a folder of its own: see tests/integrations/conftest.py.
.venv-integrations/.ready: $(INPUTS) constraints-integrations.txt
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --quiet -c constraints.txt -c constraints-integrations.txt -e ".[integrations]"
	.venv-integrations/bin/pip install --quiet --no-deps -c constraints-integrations.txt timm
	.venv-integrations/bin/pip install --quiet --no-deps -c constraints-integrations.txt \
		--target .venv-integrations/torchvision torchvision
	touch $@

.venv/.lab: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[lab]"
	touch $@

.venv/.dev: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/.lab

clean:
	rm -rf .venv .venv-* build dist demo src/dynabound.egg-info src/dynabound/optim/*.so
