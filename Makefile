# Every target sets up its own virtual environment and needs nothing before it but Python >= 3.10 and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
INPUTS := pyproject.toml setup.py constraints.txt src/dynabound/optim/_kernel.c
# pip compiles nothing, which takes half of an installation: every module is compiled when it is first imported.
INSTALL := pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
FAST := not slow and not processes and not ray and not browser and not compile

FRAMEWORKS := .venv-frameworks/bin
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined

.PHONY: demo check test frameworks gpu integrations sanitize bench lint docs clean

demo: .venv/.lab
	$(BIN)/dynabound reproduce --scale demo --out demo

# Before every commit: style, types and the fast tests, in about two minutes.
check: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(FAST)"

# Three processes on two cores, because tests of Ray and of other processes wait half of the time. A file's tests stay
# together, because they share runs, clusters and studies.
test: .venv/.dev
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# JAX, Optax and Keras with its three backends have an environment of their own, and a process for each backend.
frameworks: .venv-frameworks/.ready
	$(FRAMEWORKS)/python -m pytest -n 2 --dist worksteal tests/frameworks
	KERAS_BACKEND=jax JAX_PLATFORMS=cpu $(FRAMEWORKS)/python -m pytest -W "ignore:__array__ implementation:DeprecationWarning" \
		src/dynabound/optax src/dynabound/keras docs/optax.md docs/keras.md

# The Triton kernel without a GPU: interpreted beside the C kernel, and compiled for three GPUs. Only a process of its own can
# interpret Triton's functions.
gpu: .venv-gpu/.ready
	TRITON_INTERPRET=1 .venv-gpu/bin/python -m pytest -n 2 --dist worksteal tests/gpu/interpreted
	.venv-gpu/bin/python -m pytest -n 2 --dist worksteal tests/gpu/compiled

.venv-gpu/.ready: $(INPUTS) constraints-gpu.txt
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/$(INSTALL) -c constraints.txt -c constraints-gpu.txt -e ".[gpu]"
	touch $@

bench: .venv/.dev
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/formats.py

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/. A broken link fails.
docs: .venv-docs/.ready
	.venv-docs/bin/mkdocs build --strict

.venv-docs/.ready: pyproject.toml constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/$(INSTALL) -c constraints-docs.txt ".[docs]"
	touch $@

# The examples of docs/integrations.md and more, against the real frameworks. A few minutes to install, a few to run.
integrations: .venv-integrations/.ready
	.venv-integrations/bin/python -m pytest tests/integrations -o addopts="--import-mode=importlib --strict-markers"

# timm without its dependencies, and torchvision in a folder of its own: see tests/integrations/conftest.py.
.venv-integrations/.ready: $(INPUTS) constraints-integrations.txt
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/$(INSTALL) -c constraints.txt -c constraints-integrations.txt -e ".[integrations]"
	.venv-integrations/bin/$(INSTALL) --no-deps -c constraints-integrations.txt timm
	.venv-integrations/bin/$(INSTALL) --no-deps -c constraints-integrations.txt \
		--target .venv-integrations/torchvision torchvision
	touch $@

# The optimizers' tests with a kernel built for the address and undefined-behaviour sanitizers (Linux, GCC).
sanitize: .venv/.dev
	rm -rf .sanitize && mkdir .sanitize && cp -r src/dynabound .sanitize/ && rm -f .sanitize/dynabound/optim/*.so
	CC=gcc CFLAGS="-g $(SANITIZERS)" LDFLAGS="$(SANITIZERS)" DYNABOUND_REQUIRE_KERNEL=1 \
	  $(BIN)/python setup.py -q build_ext --force --build-lib .sanitize --build-temp .sanitize/temp
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	  PYTHONPATH=.sanitize $(BIN)/python -m pytest -n 2 --dist worksteal tests/optim -m "not processes and not compile"

.venv/.lab: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) -c constraints.txt -e ".[lab]"
	$(BIN)/dynabound doctor
	touch $@

.venv/.dev: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) -c constraints.txt -e ".[dev]"
	touch $@ .venv/.lab

.venv-frameworks/.ready: $(INPUTS) constraints-frameworks.txt
	$(PYTHON) -m venv .venv-frameworks
	$(FRAMEWORKS)/$(INSTALL) -c constraints.txt -c constraints-frameworks.txt -e ".[frameworks]"
	touch $@

clean:
	rm -rf .venv .venv-* .sanitize build dist demo site src/dynabound.egg-info src/dynabound/optim/*.so
