# Every target sets up its own virtual environment and needs nothing before it but Python >= 3.10 and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
INPUTS := pyproject.toml setup.py constraints.txt src/dynabound/optim/_kernel.c
FAST := not slow and not processes and not ray and not browser and not compile

.PHONY: demo check test bench lint clean

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
