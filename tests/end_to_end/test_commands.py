"""The commands beside the jobs, and `--branch`, as processes; a job that is wrong fails before Spark starts."""

import subprocess

import pytest

from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append
from kit.cases import for_each
from kit.lake import events, multiset
from kit.shell import BIN, Finished, Operator


def run(operator: Operator, *words: str) -> Finished:
    """Run a command whose name may be two words."""
    done = subprocess.run(
        [str(BIN / "icekeep"), *words, "--conf", str(operator.conf), "--catalog", "local", "--table", "db.events"],
        capture_output=True,
        text=True,
        env=operator.environment(),
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_a_branch_is_made_listed_and_published_from_the_shell(operator: Operator) -> None:
    table = operator.lake.filled(commits=1, files=1)
    assert run(operator, "ref", "create-branch", "audit", "--max-ref-age", "7d").status == 0
    append(operator.lake.load(), events(9), branch="audit")
    listed = run(operator, "ref", "list", "--output", "json")
    assert (listed.status, listed.err) == (0, "")
    refs = {ref["name"]: ref for ref in listed.json["result"]["refs"]}
    assert (refs["audit"]["type"], refs["audit"]["max_ref_age_ms"]) == ("branch", 604_800_000)
    rows = operator.lake.rows()
    planned = run(operator, "ref", "fast-forward", "main", "--to", "audit", "--dry-run")
    assert (planned.status, operator.lake.rows()) == (0, rows)
    assert run(operator, "ref", "fast-forward", "main", "--to", "audit").status == 0
    assert operator.lake.rows() == rows + multiset(events(9))
    back = run(operator, "rollback", "--snapshot-id", str(table.metadata.current_snapshot_id), "--output", "json")
    assert (back.status, back.json["status"]) == (0, "done")
    assert operator.lake.rows() == rows


@pytest.fixture
def with_refs(operator: Operator) -> Operator:
    """Somebody whose table has a branch, `audit`, and a tag, `v1`."""
    create_tag(create_branch(operator.lake.filled(commits=1, files=1), "audit"), "v1")
    return operator


@for_each(
    ("words", "complaint"),
    [
        ("ref drop-branch audits", "no branch 'audits'; there is 'audit', 'main'"),
        ("ref drop-tag audit", "'audit' is a branch, not a tag"),
        ("ref list --dry-run", "unrecognized arguments: --dry-run"),
        ("rollback", "--snapshot-id --timestamp --set-current --set-current-ref is required"),
        ("compact --branch audits", "no branch 'audits'; there is 'audit', 'main'"),
        ("rewrite_manifests --branch v1", "'v1' is a tag; only a branch can be committed to"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_status_2(with_refs: Operator, words: str, complaint: str) -> None:
    done = with_refs.run_here(words)
    assert done.status == 2
    assert complaint in done.complaint
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.nightly
def test_a_branch_is_compacted_from_the_shell_and_main_does_not_move(operator: Operator) -> None:
    table = create_branch(operator.lake.filled(), "audit")
    main = table.metadata.current_snapshot_id
    done = run(operator, "compact", "--branch", "audit", "--output", "json")
    assert (done.status, done.json["result"]["rewritten_data_files_count"]) == (0, 18)
    after = operator.lake.load().metadata
    assert (after.current_snapshot_id, after.refs["audit"].snapshot_id == main) == (main, False)
