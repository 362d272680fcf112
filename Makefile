# `make demo` and `make test` work on a bare machine with Python 3.10 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types unit scenarios versions package docs benchmark gpu clean

$(BIN)/supervisor: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(BIN)/supervisor
	$(BIN)/python examples/demo.py

# The last line says what only a device could show.
test: lint types unit
	@$(BIN)/python -m benchmarks.gpu --dry

lint: $(BIN)/supervisor
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/supervisor
	$(BIN)/mypy

# Three at a time on two cores: many tests wait for processes, and for time to pass.
unit: $(BIN)/supervisor
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=15

scenarios: $(BIN)/supervisor
	$(BIN)/python -m pytest -n 3 tests/scenarios

# The tests on each supported Python, into docs/versions.md; `SESSIONS=py312` for one of them.
versions: $(BIN)/supervisor
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[versions]'
	$(BIN)/nox $(addprefix -s ,$(SESSIONS))

# Wheel and sdist in dist/: what an index would say of them, and a run from an environment that has
# nothing of this checkout.
package: $(BIN)/supervisor
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest --all tests/packaging

# The documentation as a site in build/site, with a reference of the public names; a broken link is
# an error.
docs: $(BIN)/supervisor
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build

benchmark: $(BIN)/supervisor
	$(BIN)/python -m benchmarks.overhead

# What only a CUDA device can show; without one each point says so. See docs/gpu.md.
gpu: $(BIN)/supervisor
	mkdir -p build
	$(BIN)/python -m benchmarks.gpu --json build/gpu.json

clean:
	rm -rf $(VENV) build dist *.egg-info
