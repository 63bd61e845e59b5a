"""The suite of `tests/conformance` itself: it finds what tools do wrong, and its reader reads what is there."""

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pyiceberg.catalog import load_catalog

from conformance.gate import Gate, Lost
from conformance.play import CASES, Outcome, cell, play
from conformance.tools.ours import Icekeep
from conformance.tools.tool import COMPACT, Answer, CommandTool, Target, Tool
from conformance.world import NAME, World


class Careless(Tool):
    """Writes all rows anew by PyIceberg, whatever came meanwhile; and where it hears no answer it tidies up."""

    name = "careless"
    operations = (COMPACT,)

    def run(self, operation: str, target: Target) -> Answer:
        table = load_catalog("suite", type="rest", uri=target.uri).load_table(target.table)
        rows, before = table.scan().to_arrow(), set(_files(table))
        try:
            table.append(rows)
        except Exception as error:  # noqa: BLE001 - as it says
            for path in set(_files(table.refresh())) - before:
                Path(path.removeprefix("file://")).unlink()
            return Answer.of(error)
        return Answer(changed=True)


def _files(table):
    return [task.file.file_path for task in table.scan().plan_files()]


class Idle(Tool):
    name = "idle"

    def run(self, operation: str, target: Target) -> Answer:
        return Answer(changed=operation == COMPACT)


def test_rows_that_a_tool_writes_twice_come_back() -> None:
    found = play(CASES["compact/append"], Careless())
    assert (found.landed, found.rows_back, found.rows_lost) == (True, 3000, 0)
    assert not found.is_right
    assert cell(found).startswith("**3,000 rows come back**")


def test_rows_whose_files_a_tool_removes_are_lost() -> None:
    # It removes what it appended, which is there: so nothing comes back, but a reader fails at the file.
    found = play(CASES["compact/answer-504"], Careless())
    assert found.answers[0].error
    assert found.landed
    assert "1 files are gone" in found.notes[0]


def test_a_tool_that_does_nothing_is_told() -> None:
    assert play(CASES["compact/append"], Idle()).verdict == "says done, is not"
    assert play(CASES["manifests/append"], Idle()).verdict == "nothing done"


def test_what_a_tool_cannot_do_is_not_played() -> None:
    assert play(CASES["expire/tag"], Careless()).verdict == "cannot"


def test_a_tool_is_a_command_line(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    target = Target(uri="http://there", table="db.t", max_age_s=60)
    done = CommandTool("mine", f"sh -c 'echo {{operation}} {{uri}} {{table}} {{max_age_s}} > {asked}'")
    assert done.run(COMPACT, target) == Answer(changed=True)
    assert asked.read_text().split() == ["compact", "http://there", "db.t", "60"]
    failing = CommandTool("mine", "sh -c 'echo what is wrong >&2; exit 3'")
    assert failing.run(COMPACT, target) == Answer(error="status 3", message="what is wrong")


@pytest.mark.parametrize("version", [2, 3])
def test_the_reader_knows_all_deletes(tmp_path: Path, version: int) -> None:
    world = World(tmp_path, version, files=3)
    try:
        for act in (
            World.delete_by_vector if version == 3 else World.delete_positions,
            World.upsert,
            World.delete_equal,
            World.delete_by_vector if version == 3 else World.delete_positions,
            World.append,
        ):
            act(world)
        held, [main] = world.reader.held(world.reader.head()), world.kept
        assert held.rows == main.rows
        assert held.has_equality_deletes
        assert 1500 < held.rows.total() < 2000
    finally:
        world.close()


def test_a_gate_holds_what_adds_snapshots_and_loses_answers(tmp_path: Path) -> None:
    world = World(tmp_path, 2, files=1)
    gate, held = Gate(world.server.uri), []
    gate.before_commit, gate.lost = held.append, {2: Lost(504)}
    try:
        assert _post(gate, [{"action": "set-properties", "updates": {"a": "1"}}]) == 200
        assert held == []
        expired = {"action": "remove-snapshots", "snapshot-ids": []}
        assert _post(gate, [expired]) == 200
        assert _post(gate, [{"action": "set-properties", "updates": {"b": "2"}}, expired]) == 504
        assert held == [1, 2]
        assert [(one.status, one.told) for one in gate.commits] == [(200, 200), (200, 504)]
        assert world.reader.metadata["properties"]["b"] == "2"
    finally:
        gate.close()
        world.close()


def _post(gate: Gate, updates: list[object]) -> int:
    body = json.dumps({"requirements": [], "updates": updates}).encode()
    path = f"{gate.uri}/v1/namespaces/{NAME[0]}/tables/{NAME[1]}"
    request = Request(path, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urlopen(request) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


def test_icekeep_keeps_what_others_do_meanwhile() -> None:
    found = play(CASES["compact/position-deletes"], Icekeep())
    assert found == Outcome(
        case="compact/position-deletes", tool="icekeep", answers=(Answer(changed=True),), landed=True, commits=2
    )
