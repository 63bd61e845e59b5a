"""Every command does its work on small tables where PySpark is not installed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.jobs import JOBS
from kit.lake import Lake
from kit.shell import ROOT

pytestmark = pytest.mark.process

WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""
SCRIPT = """
import json
from icekeep.cli import main
from icekeep.operations.commands import demo
from icekeep.playground.states import skewed
from icekeep.operations.serving import LocalServer
from icekeep.playground.states import PlaygroundState
def ended(self): raise KeyboardInterrupt
LocalServer.serve_forever = ended
demo.STATES = (PlaygroundState(name="skewed", what="one is large", make=skewed, age_ms=2 * 86_400_000),)
print(json.dumps([main([*words, "--result-file", f"{number}.json"]) for number, words in enumerate(json.loads(sys.argv[1]))]))
"""
SAID = (
    "this needs Spark, and PySpark is not installed: icekeep[spark] brings it (how to install it: docs/install.md), or run the "
    "job with spark-submit"
)


def run(code: str, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *words],
        env={"PYTHONPATH": str(ROOT / "lib"), "HOME": str(directory)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def commands(metadata_location: str, snapshot_id: str) -> dict[str, list[str]]:
    """The further words of each command, in the order in which they are run; of a table that `drop` ends with."""
    event = ["--table", "local.db.events"]
    return {
        "demo": ["playground"],
        "init": ["--type", "sql", "--uri", "sqlite:///catalog.db", "--file", "mine.yaml"],
        "doctor": [],
        "config show": [],
        "schema": [],
        "help": ["safety"],
        "path": [],
        "completion": ["bash"],
        "tables": [],
        "report": [],
        "serve": ["--port", "0"],
        "policy check": [],
        "policy explain": event,
        "maintain": [],
        "plan_scan": event,
        "check": event,
        "compact": [*event, "--option", "rewrite-all=true", "--plan-out", "plan"],
        "apply": ["plan"],
        "rewrite_position_deletes": event,
        "rewrite_manifests": event,
        "compute_partition_stats": event,
        "compute_table_stats": event,
        "expire_snapshots": [*event, "--older-than", "0s", "--trash", "3d"],
        "remove_orphan_files": event,
        "repair": ["--fault", "301", *event],
        "history": event,
        "restore": event,
        "why": [metadata_location, *event],
        "ref create-branch": ["b", *event],
        "ref create-tag": ["t", *event],
        "ref replace-branch": ["b", "--snapshot-id", snapshot_id, *event],
        "ref replace-tag": ["t", "--snapshot-id", snapshot_id, *event],
        "ref fast-forward": ["b", "--to", "main", *event],
        "ref set-retention": ["b", "--min-snapshots-to-keep", "2", *event],
        "ref rename-branch": ["b", "--to", "c", *event],
        "ref list": event,
        "ref drop-branch": ["c", *event],
        "ref drop-tag": ["t", *event],
        "rollback": [*event, "--set-current-ref", "main"],
        "drop-statistics": event,
        "runs": [],
        "drop": event,
        "register": [*event, "--metadata-location", metadata_location],
    }


@pytest.mark.slow
def test_no_command_needs_spark_for_small_tables(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.filled(commits=3)
    (tmp_path / "conf").mkdir()
    settings: dict[str, Any] = {
        "catalogs": {"local": lake.properties},
        "policies": [{"name": "all", "match": "local.**", "schedule": "0 2 * * *", "jobs": {"compact": {}}}],
    }
    (tmp_path / "conf/icekeep.yaml").write_text(json.dumps(settings))
    wanted = commands(table.metadata_location, str(table.metadata.current_snapshot_id))
    # `ref publish` wants a snapshot that is staged.
    assert wanted.keys() >= (JOBS.keys() | COMMANDS.keys()) - {"ref publish"}
    done = run(SCRIPT, tmp_path, json.dumps([[*name.split(), *words] for name, words in wanted.items()]))
    assert done.returncode == 0, done.stderr
    statuses = json.loads(done.stdout.splitlines()[-1])
    assert {name: s for name, s in zip(wanted, statuses, strict=True) if s != 0} == {}, done.stderr


def test_exports_load_without_spark_and_session_says_so(tmp_path: Path) -> None:
    code = """
import icekeep
for name in dir(icekeep): getattr(icekeep, name)
try: icekeep.build_session("reading")
except icekeep.UsageError as error: print(error)
"""
    assert "PySpark is not installed" in run(code, tmp_path).stdout


def test_where_spark_is_needed_one_line_says_so(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.filled(commits=1)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/icekeep.yaml").write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    code = """
from icekeep import UsageError, load_catalog, scan
from icekeep.cli import main
try: scan(load_catalog("local").load(("db", "events")))
except UsageError as error: print(error)
main(["doctor", "--executors", "--output", "json"])
"""
    said, told = run(code, tmp_path).stdout.splitlines()
    assert said == SAID
    asked = [one["message"] for one in json.loads(told)["result"]["findings"] if one["about"] == "executors"]
    assert asked == [SAID]
