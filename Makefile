# Every target sets up its own .venv and needs nothing before it but Python >= 3.10 and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

TWINS := .venv-twins/bin
TWINS_READY := .venv-twins/.ready

.PHONY: demo test twins bench lint clean

demo: $(READY)
	$(BIN)/dynabound reproduce --scale demo --out demo

test: $(READY)
	$(BIN)/python -m pytest

# JAX, Optax and Keras with its three backends have an environment of their own, and a process for each backend.
twins: $(TWINS_READY)
	$(TWINS)/python -m pytest tests/twins
	KERAS_BACKEND=jax JAX_PLATFORMS=cpu $(TWINS)/python -m pytest -W "ignore:__array__ implementation:DeprecationWarning" \
		src/dynabound/optax src/dynabound/keras docs/optax.md docs/keras.md

bench: $(READY)
	$(BIN)/python benchmarks/step.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml setup.py constraints.txt src/dynabound/optim/_fused.c
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

$(TWINS_READY): pyproject.toml setup.py constraints.txt constraints-twins.txt src/dynabound/optim/_fused.c
	$(PYTHON) -m venv .venv-twins
	$(TWINS)/pip install --quiet -c constraints.txt -c constraints-twins.txt -e ".[twins]"
	touch $(TWINS_READY)

clean:
	rm -rf .venv .venv-twins build dist demo src/dynabound.egg-info src/dynabound/optim/*.so
