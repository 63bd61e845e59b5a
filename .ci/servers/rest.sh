#!/usr/bin/env bash
# Install REST catalogs that others wrote: Nessie, SeaweedFS, Lakana. `rest.sh DIRECTORY [UV]`; run from the root of the repository.
set -euo pipefail

directory=$(realpath --canonicalize-missing "$1")
uv=${2:-uv}
parts=$(realpath "$(dirname "$0")")/rest

rm -rf "$directory"
mkdir -p "$directory"
mvn --batch-mode --quiet --strict-checksums --file "$parts/pom.xml" dependency:copy-dependencies \
    -DexcludeTransitive=true -DoutputDirectory="$directory/nessie"
(cd "$directory/nessie" && sha256sum --quiet --strict --check "$parts/jars.sha256")
# Nessie needs Java 21 or newer.
$uv pip install --target "$directory/java" --require-hashes -r .ci/requirements-trino.lock
$uv pip install --target "$directory/seaweedfs" --require-hashes -r "$parts/requirements-seaweedfs.lock"
$uv venv --python "${PYTHON:-python3}" "$directory/lakana"
$uv pip install --python "$directory/lakana" --require-hashes -r "$parts/requirements-lakana.lock"
