#!/bin/sh
# Install the object stores that tests run against into DIRECTORY: .ci/servers/stores.sh DIRECTORY
# Releases are pinned, with the hashes of all that they are made of, by package-lock.json and go.sum. GO is the Go to build with.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
directory=$(cd "$1" && pwd)

command -v npm >/dev/null || { echo "the servers of tests need npm on the PATH"; exit 2; }
mkdir -p "$directory/azurite"
cp "$here/azurite/package.json" "$here/azurite/package-lock.json" "$directory/azurite"
npm ci --prefix "$directory/azurite" --ignore-scripts --no-audit --no-fund --silent

# Two packages at a time take all the memory that a small machine has: a quarter of an hour on two cores where nothing is in Go's cache.
for server in fake-gcs-server minio; do
	GOBIN="$directory" GOTOOLCHAIN=local GOFLAGS='-p=1 -buildvcs=false' ${GO:-go} -C "$here/$server" install tool
done
