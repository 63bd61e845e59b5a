"""One night over many tables: `icekeep maintain` on SQLite or PostgreSQL, beside a loop of Iceberg Java's procedures.

    python tests/bench/fleet/night.py [--tables 500] [--sick 50] [--postgres] [--java] [--workers 4]

Of the tables, in one catalog on this disk, some are sick in ten ways (`tables.py`). The first run finds them, the second has
nothing left to do. Java calls, in one warm session, the procedures that the policy names for each table, one table after the
other, whether there is anything to do or not: nothing tells it. It leaves out the tables whose metadata cannot be read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[3] / "lib"), str(Path(__file__).parents[2])]

from bench.fleet.tables import fill  # noqa: E402 - the path comes first
from bench.rival.watching import Watch  # noqa: E402
from icekeep.catalog.open import open_catalog  # noqa: E402
from kit.postgres import Postgres  # noqa: E402
from kit.shell import ROOT  # noqa: E402

POLICY = """
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: local.db.*
    jobs:
      compact: {when: {small_files_over: 8, delete_ratio_over: 0.1}}
      rewrite_position_deletes: {when: {delete_ratio_over: 0.01}}
      rewrite_manifests: {when: {manifests_over: 8}}
      expire_snapshots: {when: {snapshots_over: 8}, older_than: 0s, retain_last: 1}
      remove_orphan_files: {when: {age_over: 7d}, accept_unreadable: BROKEN}
"""
CALLS = (
    "rewrite_data_files(table => '{table}')",
    "rewrite_position_delete_files(table => '{table}')",
    "rewrite_manifests(table => '{table}')",
    "expire_snapshots(table => '{table}', older_than => TIMESTAMP '{now}', retain_last => 1)",
    "remove_orphan_files(table => '{table}')",
)
HERE = "from icekeep.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--tables", type=int, default=500)
    words.add_argument("--sick", type=int, default=50)
    words.add_argument("--workers", type=int, default=4)
    words.add_argument("--postgres", action="store_true", help="the catalog and the record of runs in PostgreSQL")
    words.add_argument("--java", action="store_true", help="also a loop of Iceberg Java's procedures (make java-env)")
    asked = words.parse_args()
    with ExitStack() as stack:
        server = Postgres() if asked.postgres else None
        if server is not None:
            stack.callback(server.close)
        for who in ("icekeep", *(("java",) if asked.java else ())):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"night-{who}-")))
            properties = _catalog(directory, server)
            with Watch() as filling:
                catalog = open_catalog("local", properties)
                catalog.create_namespace(("db",))
                fill(catalog, asked.tables, asked.sick)
            print(f"{who}: {asked.tables} tables, {asked.sick} of them sick, made in {filling.seconds:.0f} s")
            (_java if who == "java" else _icekeep)(directory, properties, asked.workers)


def _catalog(directory: Path, server: Postgres | None) -> dict[str, str]:
    uri = f"sqlite:///{directory}/catalog.db" if server is None else server.new_database()
    return {"type": "sql", "uri": uri, "warehouse": f"file://{directory}/wh"}


def _icekeep(directory: Path, properties: dict[str, str], workers: int) -> None:
    conf = directory / "icekeep.yaml"
    catalogs = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in properties.items())
    history = "" if properties["uri"].startswith("sqlite") else f"runs: {{uri: '{properties['uri']}'}}\n"
    # One table that cannot be loaded keeps orphan removal from all others until somebody says that it lies elsewhere.
    tables = open_catalog("local", properties).list_tables(("db",))
    broken = json.dumps([".".join(one) for one in tables if one[-1].endswith("_broken")])
    conf.write_text(f"catalogs:\n  local:\n{catalogs}{history}{POLICY.replace('BROKEN', broken)}")
    command = ["maintain", "--config", str(conf), "--workers", str(workers), "--output", "json"]
    planned = _run([*command, "--dry-run"])
    first, again = _run(command), _run(command)
    for name, (watch, result) in {"dry run": planned, "first run": first, "second run": again}.items():
        counts = {key: value for key, value in result.items() if key.endswith("_jobs_count") and value}
        print(
            f"  {name}: {watch.seconds:.1f} s, {watch.cpu_seconds:.1f} processor s, {watch.total_bytes / 1e6:.0f} MB; "
            f"looked for {result['looked_ms'] / 1000:.1f} s; {result['status']}, {counts}, "
            f"{result['looked_requests_count']} requests of the look, {result['requests_count']} of the jobs"
        )
    left = Counter(job["job"] for table in again[1]["tables"] for job in table["jobs"] if job["status"] == "done")
    print(f"  left for the second run: {dict(left)}; failing or refused in the first:")
    for table in first[1]["tables"]:
        for job in table["jobs"]:
            if job["status"] in ("failed", "refused"):
                print(f"    {table['table']} {job['job']}: {job['why'][:150]}")
    print(f"  not read: {[one['name'] for one in first[1]['not_read']]}")


def _run(words: list[str]) -> tuple[Watch, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    with Watch() as watch:
        done = subprocess.run(
            [sys.executable, "-c", HERE, *words], capture_output=True, text=True, env=environment, check=False
        )
    if done.returncode not in (0, 3):
        sys.exit(done.stderr[-3000:])
    return watch, json.loads(done.stdout)["result"]


def _java(directory: Path, properties: dict[str, str], workers: int) -> None:
    tables = open_catalog("local", properties).list_tables(("db",))
    # Of metadata that cannot be read each call tries twenty times, for minutes.
    names = [f"db.{name}" for _, name in tables if not name.endswith("_broken")]
    told = directory / "tables.json"
    told.write_text(
        json.dumps({"names": names, "calls": CALLS, "catalog": properties, "jars": str(ROOT / ".java-env")})
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    with Watch() as watch:
        done = subprocess.run(
            [str(ROOT / ".venv-java/bin/python"), str(Path(__file__).with_name("java_loop.py")), str(told)],
            capture_output=True,
            text=True,
            env={**environment, "TZ": "UTC"},
            cwd=directory,
            check=False,
        )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    said = json.loads(done.stdout.splitlines()[-1])
    print(
        f"  the loop: {watch.seconds:.1f} s as a process, {said['seconds']:.1f} s of calls, {watch.cpu_seconds:.1f} processor s, "
        f"{watch.total_bytes / 1e6:.0f} MB; {said['calls']} calls, {said['failed']} failed"
    )


if __name__ == "__main__":
    main()
