# icekeep: every target makes its own set-up in .venv; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DIST ?= dist
AIRFLOW_VENV := .venv-airflow
AIRFLOW_READY := $(AIRFLOW_VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit interop airflow-env lint format lock dist clean

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml .ci/requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "icekeep needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@command -v java >/dev/null || { echo "icekeep needs Java 17 or newer on the PATH (Spark runs on it)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(READY) ## Make .venv with everything that development needs

demo: $(READY) ## Run the main jobs on real data (New York's flights of 2013), under five minutes
	$(BIN)/python tests/demo/flights.py

test: $(READY) ## Run the tests that need nothing but this checkout and Java
	$(BIN)/python -m pytest

test-unit: $(READY) ## Run the unit tests only: no Spark, seconds
	$(BIN)/python -m pytest tests/unit

interop: $(READY) airflow-env ## Run the tests against foreign software (Airflow)
	$(BIN)/python -m pytest tests/interop

airflow-env: $(AIRFLOW_READY) ## Make .venv-airflow: Airflow and its Spark provider, apart from our Spark

$(AIRFLOW_READY): .ci/requirements-airflow.lock
	$(PYTHON) -m venv $(AIRFLOW_VENV)
	$(AIRFLOW_VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements-airflow.lock
	@touch $@

lint: $(READY) ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=lib $(BIN)/lint-imports --no-cache

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY) ## Resolve the development dependencies anew into .ci/*.lock
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra spark --extra dev pyproject.toml -o .ci/requirements.lock
	printf '%s\n' 'apache-airflow>=3,<4' apache-airflow-providers-apache-spark | \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		- -o .ci/requirements-airflow.lock

dist: $(READY) ## Build the wheel, and the zip for `spark-submit --py-files`, in dist/
	$(BIN)/python -m build --quiet --wheel --no-isolation --outdir $(DIST) .
	rm -rf build
	$(BIN)/python .ci/zip_package.py $(DIST)/icekeep.zip

clean: ## Remove what the targets made
	rm -rf $(VENV) $(AIRFLOW_VENV) build dist warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis lib/*.egg-info
