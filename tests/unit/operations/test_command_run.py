"""Every command beside the jobs, as an operator types it, on a real table; the result says what moved, PyIceberg agrees."""

import json
from datetime import datetime
from functools import partial

import pytest

from icekeep import cli
from icekeep.operations import loading
from icekeep.tables.refs import create_branch, create_tag, fast_forward, rename_branch
from icekeep.tables.verbs import append, rollback_to_snapshot
from kit.cases import for_each
from kit.fake_jobs import problems
from kit.lake import EVENTS, Lake, events, multiset

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def lake(tmp_path):
    return new_lake(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A lake for commands that must leave it as it is."""
    return new_lake(tmp_path_factory.mktemp("untouched"))


def new_lake(directory):
    """A table of three snapshots, with the branch `dev` and the tag `v1` at the second."""
    lake = Lake(directory)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (directory / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    table = lake.filled(commits=3, files=1)
    second = ids(table)[1]
    create_tag(create_branch(table, "dev", second, min_snapshots_to_keep=2), "v1", second)
    return lake


def ids(table):
    return [s.snapshot_id for s in table.metadata.snapshots]


@pytest.fixture
def run_on(capsys):
    """Runs a command on a lake and gives its exit status and its one JSON object."""

    def run_command(lake, *words):
        conf = lake.directory / "icekeep.yaml"
        status = cli.main([*words, "--table", "db.events", "--conf", str(conf), "--output", "json"])
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        document = json.loads(out)
        assert problems(document) == []
        return status, document

    return run_command


@pytest.fixture
def run(lake, run_on):
    return partial(run_on, lake)


def moves(document):
    def number(text):
        return None if text is None else int(text)

    return [
        (r["ref"], r["type"], number(r["previous_snapshot_id"]), number(r["current_snapshot_id"]))
        for r in document["result"]["refs"]
    ]


def foreign_refs(lake):
    return {name: ref.snapshot_id for name, ref in lake.foreign().metadata.refs.items()}


def state(lake):
    """All that a rehearsal must leave alone."""
    return {path: path.read_bytes() for path in lake.files_on_disk()}, lake.load().metadata_location


COMMANDS = {
    "ref create-branch team/b": [("team/b", "branch", None, 2)],
    "ref create-branch b --snapshot-id {0}": [("b", "branch", None, 0)],
    "ref create-branch dev --or-replace --snapshot-id {0}": [("dev", "branch", 1, 0)],
    "ref create-tag v1/2026": [("v1/2026", "tag", None, 2)],
    "ref create-tag t --snapshot-id {0} --max-ref-age 30d": [("t", "tag", None, 0)],
    "ref replace-branch dev --snapshot-id {0}": [("dev", "branch", 1, 0)],
    "ref replace-tag v1 --snapshot-id {2}": [("v1", "tag", 1, 2)],
    "ref fast-forward dev --to main": [("dev", "branch", 1, 2)],
    "ref fast-forward new --to v1": [("new", "branch", None, 1)],
    "ref rename-branch dev --to work": [("work", "branch", None, 1), ("dev", "branch", 1, None)],
    "ref drop-branch dev": [("dev", "branch", 1, None)],
    "ref drop-tag v1": [("v1", "tag", 1, None)],
    "ref drop-tag --match v*": [("v1", "tag", 1, None)],
    "ref set-retention dev --max-snapshot-age 7d": [("dev", "branch", 1, 1)],
    "rollback --snapshot-id {0}": [("main", "branch", 2, 0)],
    "rollback --timestamp {time}": [("main", "branch", 2, 1)],
    "rollback --set-current {0}": [("main", "branch", 2, 0)],
    "rollback --set-current-ref v1": [("main", "branch", 2, 1)],
}


@pytest.mark.parametrize(("words", "expected"), COMMANDS.items(), ids=COMMANDS.keys())
def test_a_command_is_rehearsed_to_the_letter_and_then_done(lake, run, words, expected):
    table = lake.load()
    known = ids(table)
    last_ms = table.metadata.snapshots[2].timestamp_ms
    argv = words.format(*known, time=last_ms).split()
    expected = [(name, kind, *(None if n is None else known[n] for n in numbers)) for name, kind, *numbers in expected]
    refs, before = foreign_refs(lake), state(lake)
    status, planned = run(*argv, "--dry-run")
    assert (status, planned["status"], planned["dry_run"]) == (0, "planned", True)
    assert state(lake) == before
    status, done = run(*argv)
    assert (status, done["status"], done["dry_run"]) == (0, "done", False)
    assert (done["job"], done["table"]) == (argv[0] if argv[0] == "rollback" else " ".join(argv[:2]), "local.db.events")
    assert moves(done) == moves(planned) == expected
    result = done["result"]
    assert (result["has_effect"], result["adds_snapshot"]) == (True, False)
    assert result["previous_metadata_location"] == table.metadata_location
    assert result["metadata_location"] == lake.load().metadata_location != table.metadata_location
    assert planned["result"] == {**result, "metadata_location": None}
    changes = {name: after for name, _, _, after in expected}
    assert foreign_refs(lake) == {name: at for name, at in {**refs, **changes}.items() if at is not None}


@for_each(
    "words",
    [
        "ref create-branch dev --if-not-exists",
        "ref create-tag v1 --if-not-exists --max-ref-age 30d",
        "ref create-tag v1 --or-replace --snapshot-id {1}",
        "ref drop-branch gone --if-exists",
        "ref drop-tag gone --if-exists",
        "ref drop-tag --match gone-* --if-exists",
    ],
)
def test_what_is_there_or_gone_already_is_done_without_an_effect(lake, run, words):
    before = lake.load()
    for more in ([], ["--dry-run"]):
        status, done = run(*words.format(*ids(before)).split(), *more)
        assert (status, done["result"]["has_effect"], done["result"]["refs"]) == (0, False, [])
    assert lake.load().metadata_location == before.metadata_location


def test_ref_limits_are_given_as_ages_and_returned_in_ms(lake, run):
    limits = ("--max-ref-age", "30d", "--max-snapshot-age", "12h", "--min-snapshots-to-keep", "3")
    _, done = run("ref", "create-branch", "b", *limits)
    [ref] = done["result"]["refs"]
    assert (ref["max_ref_age_ms"], ref["max_snapshot_age_ms"], ref["min_snapshots_to_keep"]) == (
        2_592_000_000,
        43_200_000,
        3,
    )
    foreign = lake.foreign().metadata.refs["b"]
    assert (foreign.max_ref_age_ms, foreign.max_snapshot_age_ms, foreign.min_snapshots_to_keep) == (
        2_592_000_000,
        43_200_000,
        3,
    )
    _, done = run("ref", "set-retention", "b", "--min-snapshots-to-keep", "4")
    [ref] = done["result"]["refs"]
    assert (ref["max_ref_age_ms"], ref["min_snapshots_to_keep"]) == (2_592_000_000, 4)


def test_list_shows_main_then_branches_then_tags_as_they_are(lake, run):
    create_branch(lake.load(), "a-branch")
    before = state(lake)
    status, document = run("ref", "list")
    assert (status, document["job"], document["status"]) == (0, "ref list", "done")
    refs = document["result"]["refs"]
    assert [(r["name"], r["type"]) for r in refs] == [
        ("main", "branch"),
        ("a-branch", "branch"),
        ("dev", "branch"),
        ("v1", "tag"),
    ]
    assert {r["name"]: int(r["snapshot_id"]) for r in refs} == foreign_refs(lake)
    assert refs[2]["min_snapshots_to_keep"] == 2
    committed_at = datetime.fromisoformat(refs[2]["committed_at"])
    assert committed_at.timestamp() * 1000 == lake.load().metadata.snapshots[1].timestamp_ms
    assert document["result"]["metadata_location"] == lake.load().metadata_location
    assert state(lake) == before


def test_a_staged_append_is_published_by_id_and_by_wap_id(lake, run):
    table = lake.load()
    third = ids(table)[2]
    for number, wap_id in ((50, "w1"), (51, "w2")):
        # A snapshot that was taken out of main's history is one that was staged.
        table = rollback_to_snapshot(append(table, events(number), summary={"wap.id": wap_id}), third)
    staged = ids(table)[-2:]
    rows, before = lake.rows(), state(lake)
    status, planned = run("ref", "publish", "--snapshot-id", str(staged[0]), "--dry-run")
    assert (status, moves(planned)) == (0, [("main", "branch", third, staged[0])])
    assert state(lake) == before
    _, done = run("ref", "publish", "--snapshot-id", str(staged[0]))
    assert moves(done) == moves(planned)
    before = state(lake)
    # Main has moved on, so the second becomes a new snapshot, whose id nobody can know before.
    _, planned = run("ref", "publish", "--wap-id", "w2", "--dry-run")
    assert (moves(planned), planned["result"]["adds_snapshot"]) == ([("main", "branch", staged[0], None)], True)
    assert state(lake) == before
    _, done = run("ref", "publish", "--wap-id", "w2")
    assert (moves(done), done["result"]["adds_snapshot"]) == (
        [("main", "branch", staged[0], lake.load().metadata.current_snapshot_id)],
        True,
    )
    assert lake.rows() == rows + multiset(events(50)) + multiset(events(51))


def test_dry_run_of_branch_on_empty_table_has_no_snapshot_id(lake, run):
    lake.catalog.drop(EVENTS)
    lake.create()
    before = state(lake)
    _, listed = run("ref", "list")
    assert listed["result"]["refs"] == []
    status, planned = run("ref", "create-branch", "b", "--dry-run")
    assert (status, moves(planned), planned["result"]["adds_snapshot"]) == (0, [("b", "branch", None, None)], True)
    assert state(lake) == before
    _, done = run("ref", "create-branch", "b")
    [made] = ids(lake.load())
    assert moves(done) == [("b", "branch", None, made)]
    assert run("ref", "create-tag", "t")[0] == 2


WRONG = [
    ("ref drop-branch dve", "not-found", "no branch 'dve'; there is 'dev', 'main'"),
    ("ref drop-tag v2", "not-found", "no tag 'v2'; there is 'v1'"),
    ("ref drop-branch v1", "usage", "'v1' is a tag, not a branch"),
    ("ref drop-tag dev", "usage", "'dev' is a branch, not a tag"),
    # A branch is none of a pattern's tags.
    ("ref drop-tag --match d*", "not-found", "no tag matches 'd*'; the table has 1 tag"),
    ("ref drop-branch main", "usage", "main cannot be dropped"),
    ("ref replace-branch v1 --snapshot-id {0}", "usage", "'v1' is a tag"),
    ("ref replace-tag v1 --snapshot-id 12", "not-found", "no snapshot 12"),
    ("ref create-branch dev", "usage", "branch 'dev' exists already"),
    ("ref create-tag main", "usage", "branch 'main' exists already"),
    ("ref create-branch b --snapshot-id 12", "not-found", "no snapshot 12"),
    ("ref fast-forward main --to dev2", "not-found", "no branch or tag 'dev2'; there is 'dev', 'main', 'v1'"),
    ("ref fast-forward v1 --to main", "usage", "'v1' is a tag"),
    ("ref rename-branch main --to b", "usage", "main cannot be renamed"),
    ("ref rename-branch dev --to v1", "usage", "tag 'v1' exists already"),
    ("ref set-retention v1 --min-snapshots-to-keep 3", "usage", "only a branch can have min-snapshots-to-keep"),
    ("ref set-retention v1", "usage", "no limit to set on 'v1'; give at least one"),
    ("ref set-retention v2 --max-ref-age 1d", "not-found", "no branch or tag 'v2'"),
    ("ref publish --wap-id w9", "not-found", "no snapshot with the wap.id 'w9'"),
    ("ref publish --snapshot-id {0}", "usage", "in the history of main already"),
    ("rollback --snapshot-id 12", "not-found", "no snapshot 12"),
    ("rollback --timestamp 2013-01-01", "not-found", "older than 2013-01-01T00:00:00Z"),
    ("rollback --set-current 12", "not-found", "no snapshot 12"),
    ("rollback --set-current-ref v2", "not-found", "no branch or tag 'v2'; there is 'dev', 'main', 'v1'"),
]


@pytest.mark.parametrize("is_rehearsal", [False, True])
@pytest.mark.parametrize(("words", "kind", "message"), WRONG, ids=[words for words, *_ in WRONG])
def test_impossible_command_exits_2_and_changes_nothing(untouched, run_on, words, kind, message, is_rehearsal):
    before = state(untouched)
    argv = words.format(*ids(untouched.load())).split()
    status, document = run_on(untouched, *argv, *(["--dry-run"] if is_rehearsal else []))
    assert (status, document["error"]["kind"]) == (2, kind)
    assert message in document["error"]["message"]
    assert document["job"] == (argv[0] if argv[0] == "rollback" else " ".join(argv[:2]))
    assert state(untouched) == before


def test_a_second_run_has_nothing_to_do(lake, run):
    run("ref", "fast-forward", "dev", "--to", "main")
    before = state(lake)
    for argument in ([], ["--dry-run"]):
        status, document = run("ref", "fast-forward", "dev", "--to", "main", *argument)
        result = document["result"]
        assert (status, result["has_effect"], result["refs"]) == (0, False, [])
        assert result["metadata_location"] == result["previous_metadata_location"] == before[1]
    assert state(lake) == before


@pytest.fixture
def others_act(monkeypatch):
    """Lets others act on the table after a command has loaded it and before it commits."""
    load = loading.load_table

    def prepare(act):
        def load_table(reference, *, runtime):
            table = load(reference, runtime=runtime)
            act(table)
            return table

        monkeypatch.setattr(loading, "load_table", load_table)

    return prepare


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_rollback_of_concurrently_moved_main_exits_75(lake, run, others_act, arguments):
    second = ids(lake.load())[1]
    others_act(lambda table: append(table, events(9)))
    status, document = run("rollback", "--snapshot-id", str(second), *arguments)
    assert (status, document["error"]["kind"]) == (75, "conflict")
    assert sum(lake.rows().values()) == 80


def test_result_names_replaced_table_not_loaded_one(lake, run, others_act):
    table = lake.load()
    others_act(lambda seen: fast_forward(append(seen, events(9)), "dev", "main"))
    status, document = run("ref", "rename-branch", "dev", "--to", "work")
    now = ids(lake.load())[-1]
    assert (status, moves(document)) == (0, [("work", "branch", None, now), ("dev", "branch", now, None)])
    assert document["result"]["previous_metadata_location"] != table.metadata_location


def test_what_others_have_done_already_is_no_change(lake, run, others_act):
    others_act(lambda seen: rename_branch(seen, "dev", "work"))
    status, document = run("ref", "rename-branch", "dev", "--to", "work")
    assert (status, document["result"]["has_effect"], document["result"]["refs"]) == (0, False, [])


def test_a_table_for_people_says_what_moved(lake, capsys):
    conf = str(lake.directory / "icekeep.yaml")
    assert cli.main(["ref", "create-tag", "v2", "--table", "db.events", "--conf", conf, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ref create-tag local.db.events: planned, nothing was changed\nhas_effect")
    assert out.splitlines()[-1].split()[:4] == ["v2", "tag", "-", str(ids(lake.load())[2])]
