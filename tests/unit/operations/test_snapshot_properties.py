"""A user's own keys in the summaries of snapshots, from the command line to the table, and by way of a plan."""

import logging

import pytest

from icekeep import cli
from kit.lake import Lake


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path)
    lines = "\n".join(f"  {key}: {value}" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n local:\n{lines}\n  carry.summary-keys: pipeline-id\n")
    lake.filled(commits=6, files=1)
    yield lake
    logging.getLogger("icekeep").handlers.clear()


def run(*words: str) -> int:
    return cli.main([*words, "--conf", "icekeep.yaml", "--output", "json"])


def test_a_plan_has_the_keys_and_applying_it_writes_them(lake):
    named = ("--table", "db.events")
    properties = ("--snapshot-property", "ticket=OPS-7", "--snapshot-property=owner=me=you")
    assert run("compact", *named, *properties, "--option", "rewrite-all=true", "--plan-out", "p") == 0
    assert run("apply", "p") == 0
    summary = lake.foreign().current_snapshot().summary
    assert (summary["ticket"], summary["owner"]) == ("OPS-7", "me=you")
    assert run("rewrite_manifests", *named, "--snapshot-property", "ticket=OPS-8") == 0


@pytest.mark.parametrize(
    ("property_", "problem"),
    [
        ("icekeep.run-id=x", "'icekeep.run-id' cannot be a key of your own"),
        ("total-records=0", "'total-records' cannot be a key of your own"),
        ("ticket", "'ticket' is not of the form KEY=VALUE"),
    ],
)
def test_keys_of_others_are_refused_in_one_line(lake, capsys, property_, problem):
    assert run("compact", "--table", "db.events", "--snapshot-property", property_) == 2
    assert problem in capsys.readouterr().err
    assert len(lake.load().metadata.snapshots) == 6
