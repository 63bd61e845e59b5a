"""Expiration of generated histories, compared file by file with an oracle that shares no code with it (`kit.reclaim_oracle`).

The histories follow from numbers (`kit.reclaim_histories`): the same in every run. What they have in them is counted, and so is
what came of it: a generator that never shares a Puffin file would prove nothing about shared Puffin files.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import SafetyError, UsageError
from icekeep.maintenance.expire.holdings import ref_holdings
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.restore.job import restore
from kit.cases import scaled, seeds
from kit.reclaim_histories import DAY_MS, History, Steps, steps
from kit.reclaim_oracle import Expiration, Oracle, normal
from kit.runtime import no_spark, with_runtime
from kit.storage import HookedStorage, Meeting
from kit.tables import add, entries_of, files, memory_table, set_ref

pytestmark = pytest.mark.slow

HISTORIES = 250
TELLING_HISTORIES = (0, 7, 11, 23, 27, 29, 35, 37, 38, 44, 51, 109, 175)
"""Between them they meet every event and every outcome, however few others are tried."""
TRASHED = 60
EVENTS_OF_HISTORIES = (
    "fast append",
    "merging append",
    "commit to a branch",
    "put back",
    "put back under another spec",
    "put back under another spelling",
    "spelled otherwise",
    "delete of files",
    "overwrite",
    "rewrite",
    "rewrite of files with deletes",
    "position deletes",
    "equality deletes",
    "deletion vectors",
    "vectors that share a Puffin file",
    "vector in place of another",
    "manifests rewritten",
    "staged",
    "published as it is",
    "cherry-picked",
    "branch",
    "branch with retention",
    "branch fast-forwarded",
    "tag",
    "tag with retention",
    "reference dropped",
    "reference replaced",
    "rollback",
    "set current",
    "statistics",
    "partition-statistics",
    "shared statistics",
    "shared partition-statistics",
    "statistics removed",
    "spec evolved",
    "schema evolved",
    "format version raised",
    "expired before",
    "import",
    "data elsewhere",
    "metadata elsewhere",
    "writer progress",
    "snapshots named",
    "root allowed",
)
OUTCOMES = (
    "data file",
    "position delete file",
    "equality delete file",
    "manifest",
    "manifest list",
    "statistics file",
    "snapshots",
    "references",
    "files outside",
    "files of an allowed root",
    "nothing to expire",
    "refused",
    "kept: a vector of the same Puffin file",
    "kept: in another manifest",
    "kept: spelled otherwise",
    "kept: under another spec",
    "kept: shared statistics",
    "kept: writer's progress",
)
COUNTS = {
    "data file": "deleted_data_files_count",
    "position delete file": "deleted_position_delete_files_count",
    "equality delete file": "deleted_equality_delete_files_count",
    "manifest": "deleted_manifest_files_count",
    "manifest list": "deleted_manifest_lists_count",
    "statistics file": "deleted_statistics_files_count",
    "metadata file": "deleted_metadata_files_count",
}


def asked_of(history: History) -> dict[str, Any]:
    """The arguments that a history comes with."""
    asked = dict(history.asked)
    options = {"keep-writer-progress": asked.pop("keep_writer_progress"), "reclaim.roots": asked.pop("roots", "")}
    return {"options": options, **asked}


def run(history: History, **changes: Any) -> ExpireSnapshotsResult:
    table = history.catalog.load(history.table.identifier)
    return expire_snapshots(with_runtime(table, history.runtime), no_spark, **{**asked_of(history), **changes})


def foreseen(history: History, **changes: Any) -> Expiration:
    """What the oracle says that a run does now; raises `ValueError` where it must be refused."""
    asked = {**history.asked, **changes}
    location = history.catalog.load(history.table.identifier).metadata_location
    return Oracle(history.files).expiration(
        location,
        now_ms=history.runtime.now_ms(),
        roots=asked["roots"].split(",") if "roots" in asked else [],
        older_than_ms=asked.get("older_than"),
        retain_last=asked.get("retain_last"),
        snapshot_ids=asked.get("snapshot_ids", ()),
        keep_writer_progress_ms={"0": 0, "1d": DAY_MS, "7d": 7 * DAY_MS}[asked["keep_writer_progress"]],
    )


def content(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files by their normal names, but for the tool's own, and for table metadata, of which each commit makes a file."""
    found = {normal(location): data for location, data in files.items()}
    return {name: data for name, data in found.items() if "/.icekeep/" not in name and not name.endswith(".json")}


def own(files: Mapping[str, bytes]) -> set[str]:
    """The tool's own files."""
    return {location for location in files if "/.icekeep/" in location}


def check_deleted_at_once(history: History) -> Counter[str]:
    """A run that deletes: plan, result, files, snapshots and references are those of the oracle, and a second run is idle."""
    before, table = history.files, history.table
    try:
        expected = foreseen(history)
    except ValueError:
        with pytest.raises((SafetyError, UsageError)):
            run(history, trash=0)
        assert content(history.files) == content(before)
        return Counter(["refused"])
    found = outcomes(history, expected)
    sizes = {kind: len(names) for kind, names in expected.garbage.items()}

    plan = plan_expire_snapshots(with_runtime(table, history.runtime), no_spark, trash=0, **asked_of(history))
    assert history.files == before, "a plan changes nothing"
    assert {str(f.kind): f.files_count for f in plan.files_by_kind} == sizes
    assert {s.snapshot_id for s in plan.snapshots} == expected.snapshot_ids
    assert set(plan.expired_ref_names) == expected.ref_names
    assert plan.kept_outside_files_count == len(expected.outside)
    assert sorted(map(normal, plan.files)) == sorted(expected.files), "each file is planned once"

    result = run(history, trash=0)
    after = history.catalog.load(table.identifier)
    assert (result.status, result.failed_files_count, result.missing_files_count) == ("done", 0, 0)
    assert {kind: n for kind, field in COUNTS.items() if (n := getattr(result, field))} == sizes
    assert result.expired_snapshots_count == len(expected.snapshot_ids)
    assert result.kept_outside_files_count == len(expected.outside)
    assert after.metadata.snapshots_by_id.keys() == table.metadata.snapshots_by_id.keys() - expected.snapshot_ids
    assert after.metadata.refs.keys() == table.metadata.refs.keys() - expected.ref_names
    left = {name: data for name, data in content(before).items() if name not in expected.files}
    assert content(history.files) == left, "what is gone is the garbage, and nothing else"
    assert Oracle(history.files).missing(after.metadata_location) == set()
    assert own(history.files) == set(), "no plan is left"

    if history.asked.pop("snapshot_ids", ()):
        # Without a snapshot between them and the head, the branch does not keep those behind it.
        history.table = after
        check_deleted_at_once(history)
        return found
    done = history.files
    again = run(history, trash=0)
    assert (again.expired_snapshots_count, again.deleted_bytes_count) == (0, 0)
    assert history.files == done, "a second run does nothing"
    return found


def outcomes(history: History, expected: Expiration) -> Counter[str]:
    """What is to come of a history, and what keeps files that expired snapshots lead to."""
    found = Counter({kind: len(names) for kind, names in expected.garbage.items()})
    found["snapshots"] = len(expected.snapshot_ids)
    found["references"] = len(expected.ref_names)
    found["files outside"] = len(expected.outside)
    found["files of an allowed root"] = sum("/elsewhere/" in name for name in expected.files)
    found["nothing to expire"] = int(not expected.snapshot_ids and not expected.ref_names)
    found["kept: writer's progress"] = len(
        foreseen(history, keep_writer_progress="0").snapshot_ids - expected.snapshot_ids
    )
    for name in expected.expired.keys() & expected.retained.keys():
        gone, kept = expected.expired[name], expected.retained[name]
        kinds = {reached.kind for reached in gone}
        found["kept: a vector of the same Puffin file"] += bool({r.blob for r in gone} - {r.blob for r in kept})
        found["kept: shared statistics"] += "statistics file" in kinds
        if "data file" in kinds:
            found["kept: in another manifest"] += {r.listed_by for r in gone}.isdisjoint(r.listed_by for r in kept)
            found["kept: spelled otherwise"] += {r.spelling for r in gone}.isdisjoint(r.spelling for r in kept)
            found["kept: under another spec"] += {r.spec_id for r in gone}.isdisjoint(r.spec_id for r in kept)
    return found


def test_expiring_deletes_what_the_oracle_says_and_nothing_else() -> None:
    """Peers' failures 5 and 11: files that another reference or a snapshot before needs, and statistics files."""
    events: Counter[str] = Counter()
    for number in sorted({*seeds(scaled(HISTORIES)), *TELLING_HISTORIES}):
        history = History.of(number)
        try:
            events += check_deleted_at_once(history)
        except AssertionError as error:
            raise AssertionError(f"history {number}") from error
        events += history.events
    assert [name for name in (*EVENTS_OF_HISTORIES, *OUTCOMES) if not events[name]] == []


def trash(history: History) -> list[bytes]:
    """What the files hold that lie in the trash."""
    return sorted(data for name, data in history.files.items() if "/.icekeep/trash/" in name and "/files/" in name)


def move_to_the_trash(history: History) -> Expiration | None:
    """A run that moves what it deletes; null where it is refused or finds nothing."""
    before = content(history.files)
    try:
        expected = foreseen(history)
    except ValueError:
        return None
    result = run(history, trash=3)
    assert result.is_in_trash == bool(expected.files)
    assert trash(history) == sorted(before[name] for name in expected.files)
    assert content(history.files) == {name: before[name] for name in before.keys() - expected.files}
    history.asked.pop("snapshot_ids", None)
    return expected if expected.files else None


def test_what_was_restored_is_there_byte_for_byte() -> None:
    tried: Counter[str] = Counter()
    count = scaled(TRASHED, least=20)
    for number in seeds(count):
        history = History.of(number)
        before, document = content(history.files), Oracle(history.files).document(history.table.metadata_location)
        expected = move_to_the_trash(history)
        if expected is None:
            continue
        result = restore(with_runtime(history.catalog.load(history.table.identifier), history.runtime))
        assert (result.status, result.restored_files_count) == ("done", len(expected.files)), f"history {number}"
        assert content(history.files) == before
        assert own(history.files) == set(), "no plan is left, and nothing in the trash"

        now = history.catalog.load(history.table.identifier)
        oracle = Oracle(history.files)
        assert oracle.missing(now.metadata_location) == set()
        assert expected.files <= oracle.reachable(now.metadata_location)
        restored = oracle.document(now.metadata_location)
        tags = {f"restored-{snapshot_id}": snapshot_id for snapshot_id in expected.snapshot_ids}
        assert {name: restored["refs"][name]["snapshot-id"] for name in tags} == tags
        assert restored["refs"].keys() - tags.keys() == document["refs"].keys() - expected.ref_names
        for key in ("snapshots", "statistics", "partition-statistics"):
            assert by_snapshot(restored, key) == by_snapshot(document, key), f"{key} of history {number}"

        history.runtime.pass_ms(1_000 * DAY_MS)
        run(history, trash=0)
        later = history.catalog.load(history.table.identifier).metadata
        assert later.snapshots_by_id.keys() >= expected.snapshot_ids, "what was restored does not expire again"
        assert content(history.files).keys() >= expected.expired.keys()
        tried["histories"] += 1
        tried.update({kind: len(names) for kind, names in expected.garbage.items()})
    kinds = (
        "data file",
        "position delete file",
        "equality delete file",
        "manifest",
        "manifest list",
        "statistics file",
    )
    assert [kind for kind in kinds if not tried[kind]] == []
    assert tried["histories"] > count // 2


def by_snapshot(document: Mapping[str, Any], key: str) -> dict[int, Any]:
    return {value["snapshot-id"]: value for value in document.get(key, ())}


def test_the_trash_is_emptied_once_its_days_are_over() -> None:
    tried = 0
    count = scaled(TRASHED, least=20)
    for number in seeds(count):
        history = History.of(number)
        before = content(history.files)
        expected = move_to_the_trash(history)
        if expected is None:
            continue
        history.asked |= {"older_than": 0, "retain_last": 1_000}
        held = trash(history)
        history.runtime.pass_ms(3 * DAY_MS - 60_000)
        gone = foreseen(history).files
        assert run(history, trash=0).emptied_trash_files_count == 0
        assert trash(history) == held, f"history {number}: its days are not over"
        history.runtime.pass_ms(60_000)
        gone |= foreseen(history).files
        assert run(history, trash=0).emptied_trash_files_count == len(expected.files)
        assert own(history.files) == set(), f"history {number}: nothing is left in the trash"
        assert content(history.files) == {name: before[name] for name in before.keys() - expected.files - gone}
        tried += 1
    assert tried > count // 2


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(setting=st.integers(0, 2**31), chosen=steps())
def test_expiring_any_history_deletes_what_the_oracle_says(setting: int, chosen: Steps) -> None:
    check_deleted_at_once(History(setting, chosen))


def sets(table):
    """The live files of the snapshots that each reference leads to, as paths with sizes."""
    metadata, reader = table.metadata, ManifestReader(table.storage)
    live = {
        s.snapshot_id: {
            (e.data_file.file_path, e.data_file.file_size_in_bytes)
            for m in reader.manifests(s)
            for e in reader.entries(m, metadata)
            if e.is_live
        }
        for s in metadata.snapshots
    }
    held, known = {}, set()
    for name, ref in metadata.refs.items():
        chain = [s.snapshot_id for s in metadata.ancestors(ref.snapshot_id)]
        ids = chain if ref.is_branch else chain[:1]
        known.update(ids)
        held[name] = set().union(*(live[i] for i in ids))
    young = [live[i] for i in live if i not in known]
    if young:
        held[None] = set().union(*young)
    return held


def check(table):
    held = sets(table)
    found = {one.ref: one for one in ref_holdings(table.metadata, table.storage, no_spark)}
    assert found.keys() == held.keys()
    for name, own in held.items():
        others = set().union(*(other for key, other in held.items() if key != name))
        one = found[name]
        assert (one.files_count, one.bytes) == (len(own), sum(size for _, size in own))
        assert (one.only_files_count, one.only_bytes) == (len(own - others), sum(size for _, size in own - others))
    return found


def history():
    table = memory_table()
    for name in "abc":
        table = add(table, name)
    table = set_ref(table, "t1", table.metadata.snapshots[0].snapshot_id)
    table = set_ref(table, "side", table.metadata.snapshots[1].snapshot_id, "branch")
    table = add(table, "s", branch="side")
    return commit(table, RewriteFiles(removed=entries_of(table, "a"), added=files("a2"), schema_id=0)).table


def test_file_is_counted_for_each_reference_holding_it():
    """A file that one reference alone holds would go with it, and is counted so."""
    found = check(history())
    assert (found["t1"].files_count, found["t1"].only_files_count) == (1, 0)
    assert (found["side"].snapshots_count, found["side"].only_files_count) == (3, 1)
    assert found["main"].snapshots_count == 4


def test_snapshots_that_nothing_leads_to_are_told_apart():
    table = history()
    metadata = table.metadata
    left = {name: ref for name, ref in metadata.refs.items() if name != "side"}
    found = check(replace(table, metadata=replace(metadata, refs=left)))
    assert (found[None].snapshots_count, found[None].only_files_count) == (1, 1)


def test_the_one_that_holds_most_comes_first():
    table = history()
    assert next(one.ref for one in ref_holdings(table.metadata, table.storage, no_spark)) == "main"


def test_more_references_than_a_word_has_bits_are_told_apart():
    table = memory_table()
    for number in range(70):
        table = add(table, f"f{number}")
    for number, snapshot in enumerate(table.metadata.snapshots):
        table = set_ref(table, f"t{number}", snapshot.snapshot_id)
    found = check(table)
    assert found["t69"].files_count == 70


@given(st.randoms(use_true_random=False))
def test_generated_references_hold_what_sets_say(chance):
    table = memory_table()
    branches = ["main"]
    for number in range(chance.randint(3, 12)):
        table = add(table, f"f{number}", branch=chance.choice(branches))
        snapshot_id = chance.choice(table.metadata.snapshots).snapshot_id
        kind = chance.choice(["tag", "branch", None])
        if kind:
            table = set_ref(table, f"r{number}", snapshot_id, kind)
        if kind == "branch":
            branches.append(f"r{number}")
    check(table)


def test_a_manifest_that_cannot_be_read_is_an_error():
    table = history()
    manifest = ManifestReader(table.storage).manifests(table.metadata.snapshots[0])[0]
    table.storage.delete_many([manifest.manifest_path])
    with pytest.raises(SafetyError, match="what references keep alive cannot be determined"):
        ref_holdings(table.metadata, table.storage, no_spark)


def test_the_lists_of_many_tags_are_read_at_the_same_time():
    table = history()
    for number, snapshot in enumerate(table.metadata.snapshots):
        table = set_ref(table, f"tag{number}", snapshot.snapshot_id)
    meeting = Meeting(2)
    read = replace(table, storage=HookedStorage(table.storage, before=meeting.at("snap-")))
    assert ref_holdings(read.metadata, read.storage, no_spark) == ref_holdings(table.metadata, table.storage, no_spark)
    assert meeting.took_place
