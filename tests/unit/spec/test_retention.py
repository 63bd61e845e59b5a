"""Snapshots and references that a retention policy expires, and those that are kept for streaming writers."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import icekeep.spec.retention
from icekeep.errors import OptionError, SafetyError, UsageError
from icekeep.runtime import process_cpu_ms
from icekeep.spec.metadata import TableMetadata, metadata_from_json
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.retention import (
    Expired,
    KeptForWriter,
    RetentionPolicy,
    Writer,
    select_expired,
    unused_schema_ids,
    unused_spec_ids,
    writers_of,
)
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, STRING, NestedField
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.metadata import DAY_MS, START_MS, MetadataBuilder, full_document
from kit.reclaim_oracle import WriterNeedsIt, expected_expiration
from kit.strategies import histories

MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"


def day(number: int) -> int:
    """The moment of the snapshot with a number, where snapshots lie a day apart."""
    return START_MS + (number - 1) * DAY_MS


def expire(builder: MetadataBuilder | TableMetadata, *, now_ms: int | None = None, **policy: Any) -> Expired:
    metadata = builder if isinstance(builder, TableMetadata) else builder.build()
    return select_expired(metadata, RetentionPolicy(**policy), metadata.last_updated_ms if now_ms is None else now_ms)


def expired_ids(builder: MetadataBuilder, *, now_ms: int | None = None, **policy: Any) -> set[int]:
    return set(expire(builder, now_ms=now_ms, **policy).snapshot_ids)


# Defaults of the table.


def test_a_policy_goes_before_the_properties_of_the_table():
    builder = MetadataBuilder().commits(4).properties({MIN_SNAPSHOTS: "1", MAX_SNAPSHOT_AGE: "1"})
    assert expired_ids(builder, older_than_ms=day(2)) == {1}
    assert expired_ids(builder, retain_last=3) == {1}


@for_each("name", [MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE])
@for_each("text", ["5 days", "5_000", " 5", ""])
def test_a_property_that_is_no_number_is_refused(name: str, text: str):
    with pytest.raises(UsageError, match=f"table property '{name}' is '{text}'; set a whole number"):
        expire(MetadataBuilder().commits(1).properties({name: text}))


# Age and number.


@pytest.mark.parametrize("retain_last", [0, -1])
def test_at_least_one_snapshot_is_to_be_retained(retain_last: int):
    with pytest.raises(OptionError, match=f"option retain_last is {retain_last}; give a whole number, 1 or more"):
        expire(MetadataBuilder().commits(1), retain_last=retain_last)


def test_the_properties_of_the_table_count_for_every_branch():
    # testExpireWithDefaultRetainLast.
    builder = MetadataBuilder().commits(3).branch("dev", at=2).properties({MIN_SNAPSHOTS: "2"})
    assert expired_ids(builder, older_than_ms=day(4)) == set()
    assert expired_ids(builder.branch("dev", min_snapshots_to_keep=1), older_than_ms=day(4)) == {1}


def test_policy_age_overrides_table_properties():
    """The moment of the policy applies alone, whether or not the table's is later."""
    # testExpireOlderThanMultipleCalls, testRetainLastMultipleCalls: what is said last is what is meant.
    builder = MetadataBuilder().commits(4).properties({MAX_SNAPSHOT_AGE: "1", MIN_SNAPSHOTS: "1"})
    assert expired_ids(builder, older_than_ms=day(2), retain_last=1) == {1}
    assert expired_ids(builder, older_than_ms=day(9), retain_last=2) == {1, 2}


# References.


def test_a_branch_overrides_how_many_snapshots_are_kept():
    builder = MetadataBuilder().commits(2).commits(1, branch="dev").branch("main", min_snapshots_to_keep=1)
    keep_three = builder.branch("dev", min_snapshots_to_keep=3)
    assert expired_ids(keep_three, older_than_ms=day(9)) == set()
    keep_one = builder.branch("dev", min_snapshots_to_keep=1)
    assert expired_ids(keep_one, older_than_ms=day(9)) == {1}


def test_a_branch_overrides_how_old_snapshots_may_be():
    builder = MetadataBuilder().commits(2).commits(1, branch="dev").branch("main", max_snapshot_age_ms=1)
    keep_all = builder.branch("dev", max_snapshot_age_ms=2**63 - 1)
    assert expired_ids(keep_all, now_ms=day(30)) == set()
    keep_one = builder.branch("dev", max_snapshot_age_ms=1)
    assert expired_ids(keep_one, now_ms=day(30)) == {1}


# Snapshots that no reference leads to.


def test_a_staged_snapshot_stays_while_it_is_young():
    builder = MetadataBuilder().commits(1).stage(at_ms=day(2)).commit(at_ms=day(3))
    assert expired_ids(builder, older_than_ms=day(1) + 1) == {1}
    assert expired_ids(builder, older_than_ms=day(2)) == {1}
    assert expired_ids(builder, older_than_ms=day(2) + 1) == {1, 2}


def test_unreferenced_parents_of_tag_stay_while_young():
    # testUnreferencedSnapshotParentOfTag.
    builder = MetadataBuilder().commits(3).tag("audit", at=3).roll_back(to=1)
    assert expired_ids(builder, older_than_ms=day(2)) == set()
    assert expired_ids(builder, older_than_ms=day(2) + 1) == {2}
    assert expired_ids(builder.tag("audit", max_ref_age_ms=1), older_than_ms=day(4)) == {2, 3}


def test_heads_of_branches_that_share_nothing_stay_each():
    # testRetainFilesOnRetainedBranches, testMultipleRefsAndCleanExpiredFilesFailsForIncrementalCleanup.
    builder = MetadataBuilder().commits(2).commits(2, branch="dev").commit(at_ms=day(5)).tag("audit", at=3)
    assert expired_ids(builder, older_than_ms=day(9)) == {1, 2}
    assert expired_ids(builder.branch("dev", max_ref_age_ms=1), now_ms=day(9), older_than_ms=day(9)) == {1, 2, 4}


def test_all_refs_but_main_may_go_at_once():
    # testFileCleanupOnAllRefsAgedOff.
    builder = MetadataBuilder().commits(1).commits(1, branch="dev").commits(1, branch="late").tag("audit", at=2)
    builder.properties({MAX_REF_AGE: "1"})
    gone = expire(builder, now_ms=day(9), older_than_ms=day(9))
    assert gone == Expired(frozenset({2, 3}), frozenset({"dev", "late", "audit"}))


def test_parents_that_lead_in_a_circle_are_walked_once():
    metadata = MetadataBuilder().commits(3).branch("dev", at=2).build()
    first = replace(metadata.snapshots[0], parent_snapshot_id=3)
    metadata = replace(metadata, snapshots=(first, *metadata.snapshots[1:]))
    assert expire(metadata, retain_last=9, keep_writer_progress_ms=1).is_empty


# Clocks that are wrong.


def test_what_is_dated_in_the_future_stays():
    builder = MetadataBuilder().commit(at_ms=day(100)).commit(at_ms=day(200)).commit(at_ms=day(3))
    assert expired_ids(builder, now_ms=day(3), older_than_ms=day(4)) == set()
    builder = MetadataBuilder().commits(2).commit(at_ms=day(100)).stage(at_ms=day(200)).commit(at_ms=day(300))
    builder.tag("audit", at=3, max_ref_age_ms=1).branch("dev", at=5, max_ref_age_ms=1)
    assert expire(builder, now_ms=day(3), older_than_ms=day(4)) == Expired(frozenset({1, 2}), frozenset())


@pytest.mark.slow
def test_a_clock_that_is_behind_expires_nothing_more():
    at_least_once = Counter[str]()

    # Ages of references are left out: what goes with a branch is judged by other rules once the branch has gone.
    @given(progressing(), st.integers(0, 25), st.integers(0, 25), st.integers(0, 25))
    @cases(150, least=150)
    def check(history: dict[str, Any], now_ms: int, behind_ms: int, keep_ms: int) -> None:
        for ref in history["refs"].values():
            ref.pop("max-ref-age-ms", None)
        metadata = metadata_from_json({**document_of(history), "properties": {MAX_SNAPSHOT_AGE: "5"}})
        policy = RetentionPolicy(keep_writer_progress_ms=keep_ms)
        right, behind = select_expired(metadata, policy, now_ms), select_expired(metadata, policy, now_ms - behind_ms)
        assert behind.snapshot_ids <= right.snapshot_ids
        at_least_once["fewer" if behind.snapshot_ids < right.snapshot_ids else "same"] += 1

    check()
    assert at_least_once["fewer"] > 10, at_least_once


def test_a_snapshot_that_is_dated_later_takes_none_with_it():
    @given(progressing(), st.integers(0, 25), st.integers(0, 8), st.integers(1, 1000), st.integers(0, 25))
    @cases(150)
    def check(history: dict[str, Any], now_ms: int, which: int, later_ms: int, keep_ms: int) -> None:
        for ref in history["refs"].values():
            ref.pop("max-ref-age-ms", None)
        policy = RetentionPolicy(keep_writer_progress_ms=keep_ms)
        properties = {"properties": {MAX_SNAPSHOT_AGE: "5"}}
        right = select_expired(metadata_from_json({**document_of(history), **properties}), policy, now_ms)
        history["snapshots"][which % len(history["snapshots"])]["timestamp-ms"] += later_ms
        wrong = select_expired(metadata_from_json({**document_of(history), **properties}), policy, now_ms)
        assert wrong.snapshot_ids <= right.snapshot_ids

    check()


# Progress of writers: iceberg #5846, where it expired and a job committed again what it had committed.

FLINK = {"flink.job-id": "j1", "flink.operator-id": "sink", "flink.max-committed-checkpoint-id": "7"}
FLINK_BEFORE_OPERATORS = {"flink.job-id": "j1", "flink.max-committed-checkpoint-id": "7"}
OTHER_JOB = {**FLINK, "flink.job-id": "j2"}
VECTORS = {**FLINK, "added-dvs": "1"}
SPARK = {"spark.sql.streaming.queryId": "q1", "spark.sql.streaming.epochId": "12"}
KAFKA = {"kafka.connect.offsets.control.group-1": '{"0":7}', "kafka.connect.commit-id": "c"}
KAFKA_BEFORE = {"kafka.connect.control.offsets.group-1": '{"0":7}', "kafka.connect.commitId": "c"}
KAFKA_AT_FIRST = {"kafka.connect.control.offsets": '{"0":7}'}


def noted(builder: MetadataBuilder, summaries: dict[int, dict[str, str]]) -> TableMetadata:
    """The table with more in the summaries of some snapshots."""
    metadata = builder.build()
    return replace(
        metadata,
        snapshots=tuple(
            replace(s, summary={**s.summary, **summaries.get(s.snapshot_id, {})}) for s in metadata.snapshots
        ),
    )


def kept(metadata: TableMetadata, *, days: int = 7, **policy: Any) -> set[int]:
    """Snapshots that stay when all that is old goes."""
    expired = expire(metadata, older_than_ms=day(1000), keep_writer_progress_ms=days * DAY_MS, **policy)
    return {s.snapshot_id for s in metadata.snapshots} - expired.snapshot_ids


@for_each(
    ("summary", "key", "writer"),
    [
        (FLINK, "flink.max-committed-checkpoint-id", "Flink job j1, operator sink"),
        (FLINK_BEFORE_OPERATORS, "flink.max-committed-checkpoint-id", "Flink job j1"),
        (SPARK, "spark.sql.streaming.epochId", "Spark query q1"),
        (KAFKA, "kafka.connect.offsets.control.group-1", "Kafka Connect control.group-1"),
        (KAFKA_BEFORE, "kafka.connect.control.offsets.group-1", "Kafka Connect group-1"),
        (KAFKA_AT_FIRST, "kafka.connect.control.offsets", "Kafka Connect sink"),
    ],
)
def test_writer_progress_keeps_snapshots_up_to_head(summary: dict[str, str], key: str, writer: str):
    metadata = noted(MetadataBuilder().commits(6), {2: summary, 3: summary})
    assert kept(metadata) == {3, 4, 5, 6}
    expired = expire(metadata, older_than_ms=day(1000), keep_writer_progress_ms=7 * DAY_MS)
    assert expired.kept == tuple(KeptForWriter(number, key, writer, "main") for number in (3, 4, 5))


def test_each_writer_keeps_its_own():
    later_operator = {**FLINK, "flink.operator-id": "other sink"}
    metadata = noted(MetadataBuilder().commits(7), {2: OTHER_JOB, 3: later_operator, 4: SPARK, 5: FLINK})
    assert kept(metadata) == {2, 3, 4, 5, 6, 7}
    assert kept(noted(MetadataBuilder().commits(4), {2: FLINK, 3: {**FLINK, **SPARK}})) == {3, 4}
    expired = expire(metadata, older_than_ms=day(1000), keep_writer_progress_ms=7 * DAY_MS)
    assert {k.snapshot_id: k.writer for k in expired.kept} == {
        2: "Flink job j2, operator sink",
        3: "Flink job j1, operator other sink",
        4: "Spark query q1",
        5: "Flink job j1, operator sink",
        6: "Flink job j1, operator sink",
    }


def test_progress_is_kept_on_every_branch_that_stays():
    builder = MetadataBuilder().commits(2).commits(2, branch="dev").commits(1).branch("old", at=2, max_ref_age_ms=1)
    metadata = noted(builder, {1: FLINK, 3: SPARK})
    assert kept(metadata) == {1, 2, 3, 4, 5}
    alone = replace(metadata, refs={n: r for n, r in metadata.refs.items() if n != "dev"})
    assert kept(alone) == {1, 2, 5}
    expired = expire(metadata, older_than_ms=day(1000), keep_writer_progress_ms=7 * DAY_MS)
    assert [(k.snapshot_id, k.branch) for k in expired.kept] == [(1, "dev"), (2, "dev"), (3, "dev")]


def test_old_progress_hides_that_of_branch_behind():
    odd = MetadataBuilder().commits(4).branch("behind", at=4)
    odd.commit(at_ms=day(-30)).commit(at_ms=day(5)).commit(at_ms=day(5), branch="dev")
    assert kept(noted(odd, {2: FLINK, 5: FLINK, 7: SPARK}), now_ms=day(5)) == {2, 3, 4, 6, 7}


def test_what_stays_for_other_reasons_is_not_said_to_be_kept():
    metadata = noted(MetadataBuilder().commits(5).tag("audit", at=3), {2: FLINK})
    expired = expire(metadata, older_than_ms=day(1000), retain_last=2, keep_writer_progress_ms=7 * DAY_MS)
    assert expired.snapshot_ids == {1}
    assert [k.snapshot_id for k in expired.kept] == [2]
    assert expire(metadata, keep_writer_progress_ms=7 * DAY_MS).kept == ()


@pytest.mark.parametrize("asked", [2, 3, 4])
def test_an_explicit_snapshot_may_not_be_one_that_a_writer_needs(asked: int):
    metadata = noted(MetadataBuilder().commits(5), {2: FLINK})
    with pytest.raises(SafetyError) as raised:
        expire(metadata, snapshot_ids=(asked,), keep_writer_progress_ms=7 * DAY_MS)
    assert raised.value.message == (
        f"cannot expire snapshot {asked}: on branch 'main' Flink job j1, operator sink would no longer find how far it has "
        "come (flink.max-committed-checkpoint-id) and write again what it has written; if it never starts again, give "
        "keep-writer-progress=0"
    )
    assert expire(metadata, snapshot_ids=(asked,)).snapshot_ids == {asked}
    assert expire(metadata, snapshot_ids=(1,), keep_writer_progress_ms=7 * DAY_MS).snapshot_ids == {1}


# Iceberg Java looks through the whole history before Flink's vectors are committed.


def test_flink_job_with_vectors_keeps_whole_branch():
    metadata = noted(MetadataBuilder().commits(6), {3: VECTORS, 4: FLINK})
    assert kept(metadata) == {1, 2, 3, 4, 5, 6}
    expired = expire(metadata, older_than_ms=day(1000), keep_writer_progress_ms=7 * DAY_MS)
    progress = [
        KeptForWriter(n, "flink.max-committed-checkpoint-id", "Flink job j1, operator sink", "main") for n in (4, 5)
    ]
    history = [KeptForWriter(n, "added-dvs", "Flink job j1, operator sink", "main") for n in (1, 2, 3)]
    assert expired.kept == (*history, *progress)
    assert kept(metadata, days=2) == {6}
    assert kept(metadata, days=0) == {6}


@pytest.mark.parametrize("summary", [{"added-dvs": "1"}, {**SPARK, "added-dvs": "1"}, {**KAFKA, "added-dvs": "1"}])
def test_vectors_of_others_keep_no_history(summary: dict[str, str]):
    assert kept(noted(MetadataBuilder().commits(4), {4: summary, 3: FLINK})) == {3, 4}


def test_a_history_is_kept_on_every_branch_that_has_the_progress():
    builder = MetadataBuilder().commits(3).commits(2, branch="dev").branch("other", at=1).commits(1)
    metadata = noted(builder, {3: VECTORS})
    assert kept(metadata) == {1, 2, 3, 4, 5, 6}
    assert kept(noted(builder, {4: VECTORS})) == {1, 2, 3, 4, 5, 6}
    assert kept(noted(MetadataBuilder().commits(3).commits(2, branch="dev").roll_back(to=1), {4: VECTORS})) == {
        1,
        2,
        3,
        4,
        5,
    }


def test_an_explicit_snapshot_may_not_be_one_of_such_a_history():
    metadata = noted(MetadataBuilder().commits(5), {5: VECTORS})
    with pytest.raises(SafetyError) as raised:
        expire(metadata, snapshot_ids=(1,), keep_writer_progress_ms=7 * DAY_MS)
    assert raised.value.message == (
        "cannot expire snapshot 1: on branch 'main' Flink job j1, operator sink would no longer commit: it writes deletion "
        "vectors, for which Iceberg Java looks through all of the branch's history; if it never starts again, or its Iceberg "
        "does so no more, give keep-writer-progress=0"
    )
    assert expire(metadata, snapshot_ids=(1,)).snapshot_ids == {1}


# Large tables.


@pytest.mark.slow
def test_many_snapshots_and_branches_are_fast():
    metadata = MetadataBuilder().commits(10_000).build()
    refs = {
        f"b{n}": SnapshotRef(snapshot_id=10_000 - 7 * n, type="branch", min_snapshots_to_keep=5000) for n in range(99)
    }
    noting = tuple(replace(s, summary={**FLINK, "flink.job-id": f"{s.snapshot_id % 9}"}) for s in metadata.snapshots)
    metadata = replace(metadata, refs={**metadata.refs, **refs}, snapshots=noting)
    began_ms = process_cpu_ms()
    expired = expire(metadata, older_than_ms=day(100_000), keep_writer_progress_ms=7 * DAY_MS)
    assert process_cpu_ms() - began_ms < 1000
    assert expired.snapshot_ids == frozenset(range(1, 10_000 - 7 * 98 - 4999))


# Against the rules written a second time.


NUMBERS = st.integers(0, 25)
NOTES = [
    FLINK,
    FLINK_BEFORE_OPERATORS,
    OTHER_JOB,
    VECTORS,
    SPARK,
    KAFKA,
    KAFKA_BEFORE,
    {"spark.sql.streaming.queryId": "q1"},
]


def document_of(history: dict[str, Any]) -> dict[str, Any]:
    return {
        **full_document(),
        **history,
        "snapshot-log": [],
        "statistics": [],
        "partition-statistics": [],
        "properties": {},
    }


def progressing() -> st.SearchStrategy[dict[str, Any]]:
    """Histories in which writers have noted their progress here and there."""

    def with_notes(history: dict[str, Any], notes: list[int]) -> dict[str, Any]:
        for snapshot, note in zip(history["snapshots"], notes, strict=False):
            # Two in three have none.
            chosen = NOTES[note % len(NOTES)] if note < len(NOTES) else {}
            snapshot["summary"] = {"operation": "append", **chosen}
        return history

    return st.builds(with_notes, histories(), st.lists(st.integers(0, 3 * len(NOTES)), min_size=9, max_size=9))


def outcome(document: dict[str, Any], policy: dict[str, Any], now_ms: int) -> str:
    """Check one expiration against the rules, and say what kind of expiration it was."""
    metadata = metadata_from_json(document)
    try:
        ids, names = expected_expiration(document, now_ms=now_ms, **policy)
    except ValueError as refusal:
        with pytest.raises(SafetyError if isinstance(refusal, WriterNeedsIt) else UsageError):
            select_expired(metadata, RetentionPolicy(**policy), now_ms)
        return "needed" if isinstance(refusal, WriterNeedsIt) else "refused"
    expired = select_expired(metadata, RetentionPolicy(**policy), now_ms)
    assert (expired.snapshot_ids, expired.ref_names) == (ids, names)
    without, _ = expected_expiration(document, now_ms=now_ms, **{**policy, "keep_writer_progress_ms": 0})
    assert [k.snapshot_id for k in expired.kept] == sorted(without - ids)
    assert expired.snapshot_ids | {k.snapshot_id for k in expired.kept} == without
    if expired.kept:
        return "kept"
    if names:
        return "refs"
    return "nothing" if not ids else "all but one" if len(ids) == len(document["snapshots"]) - 1 else "some"


@pytest.mark.slow
def test_what_expires_is_what_the_rules_say():
    outcomes = Counter[str]()

    # As in a strategy, 0 stands for "not given".
    @given(progressing(), st.lists(NUMBERS, min_size=8, max_size=8))
    @cases(1000, least=1000)
    def check(history: dict[str, Any], numbers: list[int]) -> None:
        *properties, older_than_ms, retain_last, explicit, now_ms, keep_ms = numbers
        names = (MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE)
        document = document_of(history)
        document["properties"] = {name: str(value) for name, value in zip(names, properties, strict=True) if value}
        policy = {
            "older_than_ms": older_than_ms or None,
            "retain_last": retain_last % 6 or None,
            "snapshot_ids": (explicit,) if 0 < explicit <= len(history["snapshots"]) else (),
            "keep_writer_progress_ms": keep_ms,
        }
        outcomes[outcome(document, policy, now_ms)] += 1

    check()
    kinds = ("refused", "needed", "kept", "refs", "nothing", "some", "all but one")
    assert min(outcomes[kind] for kind in kinds) >= 3, outcomes


# What the operator lays down.


def test_least_age_overrides_table_properties():
    builder = MetadataBuilder().commits(8).properties({MAX_SNAPSHOT_AGE: "1", MAX_REF_AGE: "1"})
    builder.tag("young", at=6).tag("old", at=2)
    found = expire(builder, now_ms=day(8), least_age_ms=3 * DAY_MS)
    assert found == Expired(frozenset({1, 2, 3, 4}), frozenset({"old"}))
    assert expired_ids(builder, now_ms=day(8)) == {1, 2, 3, 4, 5, 6, 7}


def test_the_progress_of_writers_that_the_operator_knows_is_kept():
    metadata = MetadataBuilder().commits(6).build()
    third = replace(metadata.snapshot(3), summary={"operation": "append", "pipeline-id": "7"})
    snapshots = tuple(third if one.snapshot_id == 3 else one for one in metadata.snapshots)
    metadata = replace(metadata, snapshots=snapshots)
    policy = {"older_than_ms": day(6), "keep_writer_progress_ms": 10 * DAY_MS}
    assert expire(metadata, now_ms=day(6), **policy).snapshot_ids == {1, 2, 3, 4, 5}
    found = expire(metadata, now_ms=day(6), progress_keys=("pipeline-*",), **policy)
    assert found.snapshot_ids == {1, 2}
    assert {one.writer for one in found.kept} == {"the writer of pipeline-id"}


def table_with_three_schemas() -> MetadataBuilder:
    fields = [NestedField(field_id=i, name=f"c{i}", type=LONG) for i in (1, 2, 3)]
    builder = MetadataBuilder(schema=Schema(fields=tuple(fields), schema_id=0)).commits(1)
    builder.schema(Schema(fields=tuple(fields[:2]), schema_id=1)).commits(1)
    return builder.schema(Schema(fields=tuple(fields[:1]), schema_id=2)).commits(1)


def test_the_only_schema_that_knows_a_partition_column_stays():
    field = PartitionField(source_id=3, field_id=1000, name="c3", transform=Identity())
    metadata = (
        MetadataBuilder(
            schema=Schema(fields=(NestedField(field_id=3, name="c3", type=STRING),), schema_id=0),
            spec=PartitionSpec(spec_id=0, fields=(field,)),
        )
        .schema(Schema(fields=(NestedField(field_id=1, name="c1", type=LONG),), schema_id=1))
        .spec(PartitionSpec(spec_id=1, fields=()))
        .commits(1)
        .build()
    )
    assert unused_schema_ids(metadata, frozenset()) == ()


def test_specs_of_retained_manifests_and_default_are_used():
    builder = MetadataBuilder()
    for spec_id in (1, 2):
        builder.spec(PartitionSpec(spec_id=spec_id, fields=()))
    metadata = builder.build()
    assert unused_spec_ids(metadata, []) == (0, 1)
    assert unused_spec_ids(metadata, [1, 1]) == (0,)
    assert unused_spec_ids(metadata, iter([0, 1])) == ()


def snapshot(**summary: str) -> Snapshot:
    return Snapshot(snapshot_id=1, timestamp_ms=0, summary={key.replace("__", "."): v for key, v in summary.items()})


def test_a_snapshot_may_have_the_progress_of_several_writers():
    offsets = {"kafka.connect.offsets.control.a": "{}", "kafka.connect.offsets.control.b": "{}"}
    several = Snapshot(snapshot_id=1, timestamp_ms=0, summary={"flink.max-committed-checkpoint-id": "1", **offsets})
    assert writers_of(several) == (
        Writer("flink.max-committed-checkpoint-id", "Flink job (unnamed)"),
        Writer("kafka.connect.offsets.control.a", "Kafka Connect control.a"),
        Writer("kafka.connect.offsets.control.b", "Kafka Connect control.b"),
    )


def test_examples():
    check_examples("spec/retention.txt", icekeep.spec.retention, globals())
