"""The command `init`: the file that it writes, what it refuses, and how it asks on a terminal."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icekeep.catalog.open import open_catalog
from icekeep.cli import main
from icekeep.errors import ConfigError, UsageError
from icekeep.operations.commands.init import QUESTIONS, Question, init
from icekeep.operations.configuration.file import read_config
from icekeep.settings import CATALOG_TYPES
from kit.cases import for_each
from kit.lake import Lake
from kit.shell import ROOT

SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
"""Runs a command on a terminal of its own, which shows what stdin brings as if it were typed."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The address of a catalog that is there, with a namespace."""
    catalog = open_catalog(
        "lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{tmp_path}/wh"}
    )
    catalog.create_namespace(("db",))
    return f"sqlite:///{tmp_path}/catalog.db"


def inited(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """The exit status and the whole document."""
    status = main(["init", *words, "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


def on_terminal(answers: str, *words: str) -> tuple[int, str]:
    """The exit status, and all that the terminal showed."""
    command = [sys.executable, "-c", SPAWN, sys.executable, "-m", "icekeep", "init", *words]
    done = subprocess.run(command, input=answers, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.replace("\r\n", "\n")


def test_flags_make_readable_file_and_catalog_opens(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--name", "prod", "--type", "sql", "--uri", database, "--warehouse", "./wh", "--property", "s3.region=010"]
    status, document = inited(capsys, *words)
    result = document["result"]
    assert (status, result["status"]) == (0, "ok")
    assert (result["file"], result["catalog"]) == ("conf/icekeep.yaml", "prod")
    assert [(one["check"], one["status"]) for one in result["findings"]][:3] == [
        ("settings", "ok"),
        ("namespaces", "ok"),
        ("tables", "not-tried"),
    ]
    assert result["next"] == ["icekeep doctor --catalog prod", "icekeep report --catalog prod"]
    # The file of the configuration is found without being named, and properties stay the text that was given.
    written = read_config()
    assert {**written.catalogs["prod"].properties} == {
        "type": "sql",
        "uri": database,
        "warehouse": "./wh",
        "s3.region": "010",
    }
    assert stat.S_ISREG(os.stat("conf/icekeep.yaml").st_mode)
    # Nothing was written to the store.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog.db", "conf"]


def test_next_commands_name_file_in_unusual_place(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--type", "sql", "--uri", database, "--file", "my conf/mine.yaml"]
    status, document = inited(capsys, *words)
    assert status == 0
    assert document["result"]["next"][0] == "icekeep doctor --catalog lake --config 'my conf/mine.yaml'"
    assert main(["config", "show", "--config", "my conf/mine.yaml"]) == 0


@for_each("there", ["file", "link"])
def test_what_is_there_stays(there: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(f"{there}.yaml")
    if there == "file":
        path.write_text("catalogs: {}\n")
    else:
        path.symlink_to("elsewhere.yaml")
    status, document = inited(capsys, "--type", "glue", "--file", str(path))
    assert (status, document["error"]["kind"]) == (2, "usage")
    assert f"{str(path)!r} is there already, and init overwrites nothing" in document["error"]["message"]
    assert path.is_symlink() or path.read_text() == "catalogs: {}\n"
    assert not Path("elsewhere.yaml").exists()


SECRETS = {
    "token": ["--property", "token=hunter2hunter2"],
    "password in the address": ["--uri", "postgresql://me:hunter2hunter2@db.example.com/lake"],
    "password behind the address": ["--uri", "jdbc:postgresql://db.example.com/lake?password=hunter2hunter2"],
    "user of a server": ["--uri", "https://hunter2hunter2@catalog.example.com"],
    "a variable beside it": ["--property", "credential=hunter2hunter2${OTHER}"],
}


@for_each("words", SECRETS.values(), ids=SECRETS)
def test_no_secret_gets_into_the_file_or_a_message(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["init", "--type", "rest", *([] if "--uri" in words else ["--uri", "https://c.example.com"]), *words])
    said = capsys.readouterr()
    assert status == 2
    assert "does not go into the file; set an environment variable" in said.err
    assert "hunter2" not in said.out + said.err
    assert not Path("conf").exists()


def test_a_secret_is_taken_from_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--type", "sql", "--uri", "postgresql://me:${LAKE_PASSWORD}@127.0.0.1:1/lake"]
    words += ["--property", "s3.secret-access-key=${S3_KEY}", "--property", "credential=me:${OTHER}"]
    status, document = inited(capsys, *words)
    assert (status, document["result"]["status"]) == (2, "wrong")
    message = document["result"]["findings"][-1]["message"]
    assert "refers to environment variable" in message
    assert "is not set (conf/icekeep.yaml, line" in message
    assert document["result"]["next"] == ["icekeep doctor --catalog lake"]
    written = Path("conf/icekeep.yaml").read_text()
    assert "uri: postgresql://me:${LAKE_PASSWORD}@127.0.0.1:1/lake\n" in written
    assert "credential: me:${OTHER}\n" in written


def test_unreachable_catalog_is_written_and_status_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, document = inited(capsys, "--type", "sql", "--uri", "postgresql://me@127.0.0.1:1/lake")
    assert (status, document["result"]["status"]) == (75, "unavailable")
    assert list(read_config().catalogs) == ["lake"]


REFUSED = {
    "no type": ([], "--type is missing, and there is no terminal to ask on; give one of sql, "),
    "unknown type": (["--type", "sqlite"], "is 'sqlite'; give one of sql, "),
    "a type that is unsafe": (["--type", "dynamodb"], "PyIceberg's client cannot commit to it"),
    "no address": (["--type", "hive"], "--uri is missing; give the address of the metastore"),
    "an empty one": (["--type", "hive", "--uri", ""], "--uri is missing; give the address of the metastore"),
    "no directory": (["--type", "hadoop"], "--warehouse is missing; give the directory of the tables"),
    "a name": (["--type", "glue", "--name", "my lake"], "'my lake' cannot name a catalog; give letters"),
    "an address twice": (["--type", "glue", "--property", "uri=x"], "it is --uri"),
    "a reference": (["--type", "glue", "--property", "a=${x y}"], "holds '${' that is no reference"),
    "a file that is none": (["--type", "glue", "--file", ""], "--file is empty"),
    "a file below a file": (["--type", "glue", "--file", "taken/icekeep.yaml"], "name another file with --file"),
}


@for_each("words, said", REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    assert main(["init", *words]) in (2, 4)
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["taken"]


@for_each("kind", QUESTIONS)
def test_what_it_asks_of_a_type_is_what_such_a_catalog_needs(kind: str) -> None:
    """With all that must be given a catalog of the type opens, as far as configuration goes."""
    values = {"uri": "thrift://127.0.0.1:1" if kind == "hive" else "https://127.0.0.1:1", "warehouse": "/srv/wh"}
    if QUESTIONS[kind][0].key == "uri" and kind in ("sql", "jdbc"):
        values["uri"] = "sqlite:////srv/catalog.db"
    needed = {one.key: values[one.key] for one in QUESTIONS[kind] if one.is_required}
    open_catalog("lake", {"type": kind, **needed})
    for key in needed:
        with pytest.raises(ConfigError, match=rf"catalogs\.lake\.{key}.* is missing"):
            open_catalog("lake", {"type": kind, **{one: value for one, value in needed.items() if one != key}})


def test_every_type_that_can_be_opened_is_asked_about() -> None:
    assert {*QUESTIONS} == {*CATALOG_TYPES}


def test_page_shows_the_question_for_the_type_as_it_is() -> None:
    assert f"Type ({', '.join(CATALOG_TYPES)}): " in (ROOT / "docs" / "commands" / "init.md").read_text()


def test_a_property_without_a_flag_is_asked_for_as_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUESTIONS, "glue", (Question("glue.id", "the id of the account", True),))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^--property glue\.id=VALUE is missing; give the id of the account$"):
        init(kind="glue")


@pytest.mark.process
def test_terminal_asks_again_until_answer_is_valid(database: str) -> None:
    answers = f"my lake\n\nsqlite\nsql\n\n{database}\n\ns3.secret-access-key=hunter2\ns3.region=eu-central-1\n\n"
    status, shown = on_terminal(answers, "--output", "json")
    assert status == 0, shown
    assert {**read_config().catalogs["lake"].properties} == {
        "type": "sql",
        "uri": database,
        "s3.region": "eu-central-1",
    }
    assert "Name of the catalog [lake]: " in shown
    assert "'my lake' cannot name a catalog" in shown
    assert "is 'sqlite'; give one of sql" in shown
    assert "this must be given" in shown
    assert "'s3.secret-access-key' is a secret, which does not go into the file" in shown


@pytest.mark.process
def test_on_a_terminal_flags_are_not_asked_for_again(database: str) -> None:
    status, shown = on_terminal(f"{database}\n", "--type", "sql", "--name", "prod")
    assert status == 0, shown
    assert {**read_config().catalogs["prod"].properties} == {"type": "sql", "uri": database}
    assert "Type (" not in shown
    assert "Another property" not in shown


@pytest.mark.process
def test_unfinished_questions_leave_nothing() -> None:
    status, shown = on_terminal("prod\nsql\n\x04")
    assert status == 2, shown
    assert "the questions were not answered to the end; nothing is written" in shown
    assert not Path("conf").exists()


def test_next_command_finds_table_of_new_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(tmp_path / "lake")
    words = ["--name", lake.catalog.name, "--type", "sql", "--uri", lake.properties["uri"]]
    assert inited(capsys, *words)[0] == 0
    assert main(["tables", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["catalogs"] == [lake.catalog.name]
