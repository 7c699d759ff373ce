# Everything that a fresh clone needs is set up by the target that needs it, in .venv. PYTHON chooses the interpreter.

PYTHON ?= python3
# How many processes share the tests.
TEST_PROCESSES ?= 3

BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
FOR_DEMO := .venv/.installed-for-demo
FOR_TESTS := .venv/.installed-for-tests

unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test test-sqlalchemy-2.0 lint types wheel clean

help:
	@echo "make demo                  run the example shop with a worker; DATABASE_URL puts it on PostgreSQL, DEMO=once ends by itself"
	@echo "make test                  check style, types and floors, and run every test"
	@echo "make test-sqlalchemy-2.0   run every test on SQLAlchemy 2.0, in an environment of its own"
	@echo "make lint                  check style and floors"
	@echo "make types                 check types"
	@echo "make wheel                 build the wheel and the source distribution into dist/"
	@echo "make clean                 delete everything that these commands have made"

demo: $(FOR_DEMO)
	$(BIN)/python -m example_app.demo

# What is measured in milliseconds runs by itself, and first; that there is none of it is no error.
test: lint types
	$(BIN)/python -m pytest -m timing || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m "not timing" --numprocesses $(TEST_PROCESSES)

test-sqlalchemy-2.0: .venv-sqlalchemy-2.0/.installed
	.venv-sqlalchemy-2.0/bin/python -m pytest -p no:cacheprovider --numprocesses $(TEST_PROCESSES)

lint: $(FOR_TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(FOR_TESTS)
	$(BIN)/mypy

wheel: $(FOR_TESTS)
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf .venv .venv-sqlalchemy-2.0 build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(FOR_DEMO): pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) '.[postgresql,admin]'
	@touch $@

$(FOR_TESTS): pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) '.[dev]'
	@touch $@ $(FOR_DEMO)

.venv-sqlalchemy-2.0/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-sqlalchemy-2.0
	.venv-sqlalchemy-2.0/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' 'SQLAlchemy<2.1'
	@touch $@
