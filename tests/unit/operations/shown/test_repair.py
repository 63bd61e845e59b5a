import io

from msgspec.structs import replace

from icekeep.maintenance.repair.job import RepairedBranch, RepairResult
from icekeep.maintenance.repair.plan import RepairedFault, RepairPlan, UnrepairedFault
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.shown.results import repair_shown

NONE_FOUND = "note                no fault of these kinds was found\n"


def shown(result):
    stream = io.StringIO()
    print_tables("repair db.t", repair_shown(result, "lake.db.t"), stream)
    return stream.getvalue()


def mend(number=0, **facts):
    return RepairedFault(
        fault_id=302, name="file-size-wrong", branch="main", where=f"s3://b/{number}", action="7 in place of 8", **facts
    )


def test_a_plan_says_what_would_be_mended_and_what_stays():
    stays = UnrepairedFault(fault_id=301, name="data-file-missing", where="s3://b/lost", reason="it is gone")
    text = shown(RepairPlan(mends=(mend(),), not_mended=(stays,), hash="12ab"))
    assert "would_mend (1)\n302 s3://b/0 on branch 'main': 7 in place of 8\n" in text
    assert "not_mended (1)\n301 s3://b/lost: it is gone\n" in text
    assert "hash                12ab\n" in text
    assert "note" not in text


def test_a_result_says_what_was_mended_and_committed():
    branch = RepairedBranch(branch="main", previous_snapshot_id=1, snapshot_id=2)
    facts = {"metadata_location_before": "a", "metadata_location": "b"}
    text = shown(RepairResult(run="repair-1", mended=(mend(),), branches=(branch,), **facts))
    assert "mended (1)\n302 s3://b/0" in text
    assert "branches (1)\n" in text
    assert NONE_FOUND not in text
    assert NONE_FOUND in shown(RepairResult(run="repair-1", **facts))


def test_a_result_says_how_to_look_at_what_was_mended():
    """At each branch alone, as older snapshots keep their faults, or at all of the table; deep where content was mended."""
    main, other = (RepairedBranch(branch=name, previous_snapshot_id=1, snapshot_id=2) for name in ("main", "a b"))
    facts = {"run": "repair-1", "metadata_location_before": "a", "metadata_location": "b"}
    deep = replace(mend(), fault_id=401)
    before, after = "icekeep check --table lake.db.t", "\n"
    assert f"{before} --ref main{after}" in shown(RepairResult(mended=(mend(),), branches=(main,), **facts))
    both = shown(RepairResult(mended=(mend(), deep), branches=(main, other), **facts))
    assert f"{before} --deep --ref main{after}{before} --deep --ref 'a b'{after}" in both
    assert f"{before}{after}" in shown(RepairResult(mended=(mend(),), **facts))
    for nothing in (RepairResult(**facts), RepairPlan(mends=(mend(),))):
        assert "icekeep check" not in shown(nothing)


def test_where_nothing_is_found_that_is_said():
    assert NONE_FOUND in shown(RepairPlan())


def test_unknown_loss_is_not_shown_as_zero():
    assert "lost_records_count  not known\n" in shown(RepairPlan(mends=(mend(),), lost_records_count=None))
    assert "lost_records_count  5\n" in shown(RepairPlan(mends=(mend(),), lost_records_count=5))


def test_of_very_many_the_first_are_printed():
    text = shown(RepairPlan(mends=tuple(map(mend, range(60)))))
    assert text.count("in place of") == 50
    assert "... and 10 more\n" in text
