"""The published schema: documents fit it, and a change of it is seen."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from icekeep import cli
from icekeep.operations.commands.document_schema import schema
from icekeep.operations.outcomes import SCHEMA_VERSION
from kit.fake_jobs import problems
from kit.lake import Lake

GOLDEN = Path(__file__).parents[3] / "contracts" / "documents.schema.json"


def document_of(*words, **world):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main([*words, "--output", "json"], **world)
    return status, json.loads(out.getvalue())


def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(words) == 0
    return out.getvalue()


def test_the_schema_is_the_one_that_is_published(request):
    """Where this fails see `operations/outcomes.py` for whether the version must be raised, then rewrite it: `--update -n0`."""
    if request.config.getoption("--update"):
        GOLDEN.write_text(printed("schema"))
    assert printed("schema") == GOLDEN.read_text()


def test_it_is_a_schema():
    Draft202012Validator.check_schema(schema().document)


def test_the_schema_of_one_job_is_a_part_of_that_of_all():
    whole, one = schema().document, json.loads(printed("schema", "--job", "ref list"))
    assert [outcome for outcome in whole["anyOf"] if outcome.get("title") == "ref list"] == one["anyOf"][:1]
    assert one["$defs"].keys() < whole["$defs"].keys()
    assert {name: whole["$defs"][name] for name in one["$defs"]} == one["$defs"]


def test_a_job_that_is_none_is_exit_status_2():
    status, document = document_of("schema", "--job", "compress")
    assert (status, document["error"]["kind"]) == (2, "usage")
    assert problems(document) == []


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = Lake(tmp_path_factory.mktemp("lake"))
    lake.filled(commits=2, files=2)
    policies = [{"name": "nightly", "schedule": "@daily", "tables": ["local.db.events"], "jobs": {"compact": {}}}]
    configuration = {"catalogs": {"local": lake.properties}, "policies": policies}
    (lake.directory / "icekeep.yaml").write_text(json.dumps(configuration))
    return lake


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "plan_scan --table db.events",
        "plan_scan --table db.events --explain 00000",
        "compact --table db.events --dry-run",
        "rewrite_position_deletes --table db.events --dry-run",
        "rewrite_manifests --table db.events --dry-run",
        "expire_snapshots --table db.events --retain-last 1 --dry-run",
        "remove_orphan_files --table db.events --dry-run",
        "drop --table db.events --purge --dry-run",
        "check --table db.events",
        "repair --table db.events --fault 302 --dry-run",
        "ref create-tag one --table db.events --dry-run",
        "ref create-tag one --table db.events",
        "ref list --table db.events",
        "history --table db.events",
        "why metadata.json --table db.events",
        "restore --list --table db.events",
        "register --table db.events --metadata-location /nowhere",
        "report",
        "runs",
        "runs --run ref",
        "policy explain --table local.db.events",
        "policy check",
        "maintain --dry-run",
        "maintain --list",
        "maintain",
        "maintain --policy nothing",
        "config show",
        pytest.param("doctor", marks=pytest.mark.process),
        "compact --table db.nothing",
        "compact --table db.events --colour red",
    ],
)
def test_what_commands_print_fits_the_schema(lake, words, monkeypatch):
    monkeypatch.chdir(lake.directory)
    monkeypatch.setenv("HOME", str(lake.directory))
    _, document = document_of(*words.split(), "--config", "icekeep.yaml")
    assert problems(document) == []
    assert document["schema_version"] == SCHEMA_VERSION
    assert ("result" in document) is not ("error" in document)


@pytest.mark.slow
def test_written_plan_and_its_result_fit_schema(lake, monkeypatch):
    monkeypatch.chdir(lake.directory)
    words = ["compact", "--table", "db.events", "--plan-out", "plan.jsonl", "--config", "icekeep.yaml"]
    status, written = document_of(*words)
    assert (status, problems(written), written["plan"]["path"]) == (0, [], "plan.jsonl")
    status, held = document_of("apply", "plan.jsonl", "--dry-run", "--config", "icekeep.yaml")
    assert (status, problems(held)) == (0, [])
    assert (held["job"], held["result"]["plan_hash"]) == ("apply", written["plan"]["hash"])
    assert problems({**written, "plan": {"path": "plan.jsonl"}})


def test_a_document_that_does_not_fit_is_seen():
    _, document = document_of("schema", "--job", "compact")
    assert problems(document) == []
    assert problems({**document, "colour": "red"})
    assert problems({**document, "result": {**document["result"], "version": "1"}})
    assert problems({**document, "run_id": None})
    assert problems({key: value for key, value in document.items() if key != "started_ms"})
