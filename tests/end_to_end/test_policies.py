"""Policies, explained and held against a catalog from the shell."""

import subprocess

from kit.shell import BIN, Finished, Operator

POLICIES = """
defaults: {schedule: "@daily"}
policies:
  - {name: nightly, match: local.db.*, jobs: {compact: {when: {small_files_over: 100}}, expire_snapshots: {older_than: 7d}}}
  - {name: typo, match: local.dv.*, jobs: {check: }}
"""


def policy(operator: Operator, *words: str) -> Finished:
    done = subprocess.run(
        [str(BIN / "icekeep"), "policy", *words, "--config", str(operator.conf)],
        capture_output=True,
        text=True,
        env=operator.environment(),
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_what_policies_say_of_a_table_is_explained_and_a_pattern_that_fits_nothing_is_found(operator: Operator) -> None:
    operator.lake.filled(commits=1, files=1)
    with operator.conf.open("a") as stream:
        stream.write(POLICIES)
    told = policy(operator, "explain", "--table", "local.db.events", "--output", "json")
    assert (told.status, told.err) == (0, "")
    jobs = {job["job"]: job for job in told.json["result"]["jobs"]}
    assert {name: (job["policy"], job["state"]) for name, job in jobs.items()} == {
        "compact": ("nightly", "runs"),
        "expire_snapshots": ("nightly", "runs"),
    }
    # The command by hand is one that can be run as it is shown.
    by_hand = jobs["expire_snapshots"]["command"].split(" ")
    planned = subprocess.run(
        [str(BIN / by_hand[0]), *by_hand[1:], "--dry-run"],
        capture_output=True,
        env=operator.environment(),
        timeout=300,
        check=False,
    )
    assert planned.returncode == 0
    shown = policy(operator, "explain", "--table", "local.db.events")
    assert f"{operator.conf}: policies[0].jobs.expire_snapshots.older_than" in shown.out
    checked = policy(operator, "check")
    assert (checked.status, checked.err) == (2, "")
    assert "unmatched_patterns (1)" in checked.out
    assert "local.dv.*" in checked.out
