# Every target sets up its own .venv and needs nothing before it but Python >= 3.10 and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test bench lint clean

demo: $(READY)
	$(BIN)/dynabound reproduce --scale demo --out demo

test: $(READY)
	$(BIN)/python -m pytest

bench: $(READY)
	$(BIN)/python benchmarks/step.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml setup.py constraints.txt src/dynabound/optim/_kernel.c
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv build dist demo src/dynabound.egg-info src/dynabound/optim/*.so
