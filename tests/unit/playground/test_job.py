"""A playground is made whole or not at all, in a directory that has nothing, and the same each time."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from icekeep.catalog.sql import SqlCatalog
from icekeep.cli import main
from icekeep.errors import UsageError
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.loading import load_catalog
from icekeep.playground.job import new_playground
from icekeep.playground.maker import TableMaker
from icekeep.playground.place import CONFIG
from icekeep.playground.states import PlaygroundState, skewed, vectors
from kit.changes import Recorder, thrown
from kit.runtime import FakeRuntime


def state(name: str, make: object = skewed) -> PlaygroundState:
    return PlaygroundState(name=name, what="made up", make=make, age_ms=86_400_000)


def make_playground(directory: Path, states: Sequence[PlaygroundState], **given: Any) -> Path:
    """One that nobody does anything with before it is finished."""
    with new_playground(directory, states, **given) as config:
        return config


def interrupted(maker: TableMaker) -> None:
    skewed(maker)
    raise KeyboardInterrupt


def test_the_configuration_opens_the_catalog_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = make_playground(tmp_path / "new" / "one", [state("a")])
    monkeypatch.chdir(tmp_path)
    assert load_catalog("demo", conf=str(conf)).list_tables(("db",)) == [("db", "a")]


def test_policy_rewrites_deletes_only_where_there_are_any(tmp_path: Path, capsys: Any) -> None:
    conf = make_playground(tmp_path / "one", [state("a"), state("vectors", vectors)])
    assert main(["maintain", "--dry-run", "--config", str(conf), "--output", "json"]) == 0
    tables = json.loads(capsys.readouterr().out)["result"]["tables"]
    due = {one["table"]: {job["job"] for job in one["jobs"] if job["status"] == "due"} for one in tables}
    assert due == {
        "demo.db.a": {"expire_snapshots"},
        "demo.db.vectors": {"rewrite_position_deletes", "expire_snapshots"},
    }


NAMES = [
    "my dir",
    "für alle",
    "100 %",
    "a#b",
    "a%20b",
    "it's",
    'a"b',
    "back\\slash",
    "{a}",
    "$a",
    "two\nlines",
    "a: b",
    "😀",
]
IS_DECODED = sqlalchemy.make_url("sqlite:///%41").database == "A"
"""Whether SQLAlchemy reads paths that are percent-encoded: without that no address of SQLite has a question mark."""


@pytest.mark.parametrize("name", [*NAMES, *(["a?b"] if IS_DECODED else [])])
def test_all_of_it_lies_in_its_directory_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    conf = make_playground(tmp_path / name, [state("a")])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert any((tmp_path / name / "warehouse").rglob("*.parquet"))
    assert load_catalog("demo", conf=str(conf)).load("db.a").metadata.current_snapshot is not None


@pytest.mark.parametrize("name", ["${HOME}", "not-utf8-\udcff"])
def test_unusable_directory_name_is_refused_first(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"the configuration cannot have .* in a path; name another directory"):
        make_playground(tmp_path / name, [state("a")])
    assert not any(tmp_path.iterdir())


def test_it_is_the_same_each_time(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        make_playground(tmp_path / name, [state("a")], runtime=FakeRuntime())
        files = [path for path in (tmp_path / name / "warehouse").rglob("*") if path.is_file()]
        digests = {
            path.relative_to(tmp_path / name): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.suffix == ".parquet"
        }
        made.append(({path.relative_to(tmp_path / name) for path in files}, digests))
    assert made[0] == made[1]
    assert made[0][1]


def test_a_directory_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="not empty; name a directory that is empty or not there"):
        make_playground(tmp_path, [state("a")])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_second_playground_in_same_place_is_refused(tmp_path: Path) -> None:
    make_playground(tmp_path, [state("a")])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        make_playground(tmp_path, [state("a")])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(
            UsageError, match=r"cannot make a playground in .*: .*; name a directory that you may write to$"
        ):
            make_playground(tmp_path / place, [state("a")])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("is_there", [True, False])
def test_an_interrupt_leaves_nothing_and_says_so(tmp_path: Path, is_there: bool) -> None:
    directory, heard = tmp_path / "half", Recorder()
    if is_there:
        directory.mkdir(mode=0o700)
        before = directory.stat()
    with pytest.raises(KeyboardInterrupt):
        make_playground(directory, [state("a"), state("b", interrupted)], listener=heard)
    assert directory.exists() is is_there
    if is_there:
        assert not any(directory.iterdir())
        assert (directory.stat().st_ino, directory.stat().st_mode) == (before.st_ino, before.st_mode)
    assert heard.warnings == [
        f"the playground is not finished, so what was made of it in {str(directory)!r} is removed"
    ]


def test_a_link_to_an_empty_directory_is_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(KeyboardInterrupt):
        make_playground(tmp_path / "link", [state("a", interrupted)])
    assert (tmp_path / "link").is_symlink()
    assert not any((tmp_path / "there").iterdir())
    make_playground(tmp_path / "link", [state("a")])
    assert (tmp_path / "there" / CONFIG).exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_others_put_there_meanwhile_stays(tmp_path: Path, is_there: bool) -> None:
    directory, heard = tmp_path / "half", Recorder()
    if is_there:
        directory.mkdir()

    def beside(maker: TableMaker) -> None:
        (directory / "notes.txt").write_text("mine")
        interrupted(maker)

    with pytest.raises(KeyboardInterrupt):
        make_playground(directory, [state("a", beside)], listener=heard)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    [warning] = heard.warnings
    assert warning.endswith("is removed" if is_there else "is removed; the directory stays: directory not empty")


def test_one_of_two_concurrent_playgrounds_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "both"
    refused = []

    def beside(maker: TableMaker) -> None:
        skewed(maker)
        with pytest.raises(UsageError, match="is not empty") as raised:
            make_playground(directory, [state("a")])
        refused.append(raised.value)

    conf = make_playground(directory, [state("a", beside), state("b")])
    assert len(refused) == 1
    assert load_catalog("demo", conf=str(conf)).list_tables(("db",)) == [("db", "a"), ("db", "b")]


def test_later_of_two_finding_directory_empty_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalog.db").touch()
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))
    with pytest.raises(UsageError, match="is not empty"):
        make_playground(tmp_path, [state("a")])
    assert (tmp_path / "catalog.db").exists()


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Recorder()
    monkeypatch.setattr("icekeep.playground.place.shutil.rmtree", thrown(PermissionError(13, "Permission denied")))
    with pytest.raises(KeyboardInterrupt):
        make_playground(tmp_path / "it", [state("a", interrupted)], listener=heard)
    assert heard.warnings[0].endswith("is removed, but for 'warehouse' (permission denied)")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), Interrupted(130)])
def test_interrupt_in_commit_stays_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    monkeypatch.setattr(SqlCatalog, "swap", thrown(interrupt))
    with pytest.raises(type(interrupt)) as raised:
        make_playground(tmp_path / "it", [state("a")])
    assert raised.value is interrupt
    assert not any(tmp_path.iterdir())


def test_what_ends_the_block_leaves_nothing_either(tmp_path: Path) -> None:
    heard = Recorder()
    with pytest.raises(KeyboardInterrupt), new_playground(tmp_path / "it", [state("a")], listener=heard):
        raise KeyboardInterrupt
    assert not any(tmp_path.iterdir())
    assert len(heard.warnings) == 1


def test_the_configuration_is_written_when_all_tables_are_made(tmp_path: Path) -> None:
    """So that what a kill leaves has none."""
    seen = []

    def look(maker: TableMaker) -> None:
        skewed(maker)
        seen.append((tmp_path / CONFIG).exists())

    make_playground(tmp_path, [state("a", look), state("b", look)])
    assert seen == [False, False]
    assert (tmp_path / CONFIG).exists()
