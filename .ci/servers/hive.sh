#!/usr/bin/env bash
# Installs Hive's metastores into a directory, each with an empty database of Derby to copy: hive.sh DIRECTORY JARS, which are those of
# Hadoop (.java-env/hdfs). A metastore's own way to make a database takes half a minute, which no test should wait for.
set -euo pipefail
target=$1 hadoop=$2
here=$(cd "$(dirname "$0")/hive" && pwd)
command -v mvn >/dev/null || { echo "servers-env needs Maven (mvn) on the PATH"; exit 2; }
rm -rf "$target"
mkdir -p "$target"
# Maven takes a relative path from the directory of the POM.
target=$(cd "$target" && pwd)
mvn --batch-mode --quiet --strict-checksums --file "$here/pom.xml" dependency:copy-dependencies \
	-DexcludeTransitive=true -DoutputDirectory="$target/archives"
(cd "$target/archives" && sha256sum --quiet --strict --check "$here/archives.sha256")
opens=()
for package in java.lang java.util java.util.concurrent java.net java.nio java.io; do
	opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
for archive in "$target"/archives/*-bin.tar.gz; do
	release=$(basename "$archive" -bin.tar.gz)
	home=$target/${release##*-}
	mkdir "$home"
	tar --extract --gzip --file "$archive" --directory "$home" --strip-components=1
	rm "$archive"
	METASTORE_HOME=$home HIVE_HOME=$home java "${opens[@]}" "-Djavax.jdo.option.ConnectionURL=jdbc:derby:;databaseName=$home/derby;create=true" \
		-Dlog4j2.level=ERROR -cp "$home/lib/*:$target/archives/*:$hadoop/*" \
		org.apache.hadoop.hive.metastore.tools.$(ls "$home"/lib/*metastore-server* >/dev/null 2>&1 && echo schematool.)MetastoreSchemaTool \
		-dbType derby -initSchema >"$home/schema.log" 2>&1 || { tail -n 20 "$home/schema.log"; exit 1; }
	rm -f "$home"/derby/*.lck
done
mv "$target"/archives "$target/jars"
