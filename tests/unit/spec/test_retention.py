from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeep.errors import NotFoundError, OptionError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import metadata_from_json
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.retention import (
    Expired,
    RetentionPolicy,
    select_expired,
    unused_schema_ids,
    unused_spec_ids,
)
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, STRING, NestedField
from kit.metadata import DAY_MS, START_MS, MetadataBuilder, full_document
from kit.retention import expected_expiry
from kit.table_strategies import histories

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


def test_snapshots_that_are_older_than_five_days_expire_by_default():
    builder = MetadataBuilder().commits(8)
    assert expired_ids(builder, now_ms=day(8)) == {1, 2}
    assert expired_ids(builder, now_ms=day(8) + 1) == {1, 2, 3}


def test_the_table_says_how_old_snapshots_may_be():
    assert expired_ids(MetadataBuilder().commits(3).properties({MAX_SNAPSHOT_AGE: "1"})) == {1, 2}


def test_the_table_says_how_many_snapshots_to_keep():
    builder = MetadataBuilder().commits(3).properties({MIN_SNAPSHOTS: "3"})
    assert expired_ids(builder, older_than_ms=day(4)) == set()


def test_a_policy_goes_before_the_properties_of_the_table():
    builder = MetadataBuilder().commits(4).properties({MIN_SNAPSHOTS: "1", MAX_SNAPSHOT_AGE: "1"})
    assert expired_ids(builder, older_than_ms=day(2)) == {1}
    assert expired_ids(builder, retain_last=3) == {1}


@pytest.mark.parametrize("name", [MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE])
def test_a_property_that_is_no_number_is_refused(name: str):
    with pytest.raises(OptionError, match=f"table property {name} is '5 days'; give a whole number"):
        expire(MetadataBuilder().commits(1).properties({name: "5 days"}))


def test_a_table_without_snapshots_has_nothing_to_expire():
    assert expire(MetadataBuilder()).is_empty
    assert not expire(MetadataBuilder().commits(2), older_than_ms=day(3)).is_empty


# Age and number.


def test_snapshots_older_than_a_moment_expire():
    assert expired_ids(MetadataBuilder().commits(2), older_than_ms=day(2) + 1) == {1}


def test_a_snapshot_exactly_at_the_moment_stays():
    assert expired_ids(MetadataBuilder().commits(3), older_than_ms=day(2)) == {1}
    assert expired_ids(MetadataBuilder().commits(3), older_than_ms=day(2) + 1) == {1, 2}


def test_the_current_snapshot_stays_however_old_it_is():
    assert expired_ids(MetadataBuilder().commits(3), older_than_ms=day(100), now_ms=day(1000)) == {1, 2}


def test_the_last_ones_stay_though_they_are_older():
    assert expired_ids(MetadataBuilder().commits(3), older_than_ms=day(4), retain_last=2) == {1}


def test_retaining_more_than_there_are_keeps_all():
    assert expired_ids(MetadataBuilder().commits(2), older_than_ms=day(4), retain_last=3) == set()
    assert expired_ids(MetadataBuilder().commits(3), older_than_ms=day(4), retain_last=4) == set()


def test_young_snapshots_stay_though_they_are_more_than_are_to_be_retained():
    assert expired_ids(MetadataBuilder().commits(4), older_than_ms=day(2), retain_last=2) == {1}


@pytest.mark.parametrize("retain_last", [0, -1])
def test_at_least_one_snapshot_is_to_be_retained(retain_last: int):
    with pytest.raises(OptionError, match=f"option retain_last is {retain_last}; give a whole number, 1 or more"):
        expire(MetadataBuilder().commits(1), retain_last=retain_last)


def test_what_a_branch_keeps_has_no_gap_though_an_older_ancestor_looks_young():
    builder = MetadataBuilder().commit(at_ms=day(9)).commit(at_ms=day(1)).commit(at_ms=day(10))
    assert expired_ids(builder, older_than_ms=day(5)) == {1, 2}


def test_the_numbers_to_keep_are_counted_from_the_head():
    builder = MetadataBuilder().commit(at_ms=day(1)).commit(at_ms=day(9)).commit(at_ms=day(2))
    assert expired_ids(builder, older_than_ms=day(5), retain_last=2) == {1}


# Explicit ids.


def test_an_explicit_snapshot_expires_though_it_would_be_retained():
    assert expired_ids(MetadataBuilder().commits(3), snapshot_ids=(1,), retain_last=3) == {1}
    assert expired_ids(MetadataBuilder().commits(3), snapshot_ids=(2, 2)) == {2}


def test_other_snapshots_expire_by_age_beside_an_explicit_one():
    assert expired_ids(MetadataBuilder().commits(9), snapshot_ids=(8,)) == {1, 2, 3, 8}


@pytest.mark.parametrize(
    ("builder", "head", "names"),
    [
        (MetadataBuilder().commits(3), 3, "'main'"),
        (MetadataBuilder().commits(2).commits(1, branch="dev"), 3, "'dev'"),
        (MetadataBuilder().commits(2).tag("audit", at=1), 1, "'audit'"),
        (MetadataBuilder().commits(2).tag("b", at=1).branch("a", at=1), 1, "'a', 'b'"),
    ],
)
def test_an_explicit_snapshot_may_not_be_the_head_of_a_retained_ref(builder: MetadataBuilder, head: int, names: str):
    with pytest.raises(UsageError) as raised:
        expire(builder, snapshot_ids=(head,))
    assert raised.value.message == (
        f"cannot expire snapshot {head}: it is the head of {names}; remove the reference first"
    )


def test_an_explicit_snapshot_may_be_the_head_of_a_ref_that_expires():
    builder = MetadataBuilder().commits(3).tag("audit", at=1, max_ref_age_ms=1)
    assert expire(builder, snapshot_ids=(1,)) == Expired(frozenset({1}), frozenset({"audit"}))


def test_an_explicit_snapshot_must_be_there():
    with pytest.raises(NotFoundError, match="has no snapshot 9"):
        expire(MetadataBuilder().commits(2), snapshot_ids=(9,))


# References.


def test_a_tag_expires_by_its_own_age_and_other_refs_stay():
    builder = MetadataBuilder().commits(2).tag("audit", at=1, max_ref_age_ms=100).branch("dev", at=2)
    assert expire(builder) == Expired(frozenset(), frozenset({"audit"}))


def test_a_branch_expires_by_its_own_age_and_other_refs_stay():
    builder = MetadataBuilder().commits(2).branch("dev", at=1, max_ref_age_ms=100).tag("audit", at=2)
    assert expire(builder) == Expired(frozenset(), frozenset({"dev"}))


def test_a_ref_stays_to_the_last_moment_of_its_age():
    builder = MetadataBuilder().commits(3).tag("audit", at=1, max_ref_age_ms=2 * DAY_MS)
    assert expire(builder, now_ms=day(3)).ref_names == frozenset()
    assert expire(builder, now_ms=day(3) + 1).ref_names == {"audit"}


def test_the_table_says_how_old_refs_may_be():
    builder = MetadataBuilder().commits(3).tag("audit", at=1).branch("dev", at=2).properties({MAX_REF_AGE: str(DAY_MS)})
    assert expire(builder).ref_names == {"audit"}


def test_refs_do_not_age_by_default():
    builder = MetadataBuilder().commits(2).tag("audit", at=1)
    assert expire(builder, now_ms=day(100_000)) == Expired(frozenset(), frozenset())


def test_main_never_expires():
    builder = MetadataBuilder().commits(2).branch("main", max_ref_age_ms=1).properties({MAX_REF_AGE: "1"})
    assert expire(builder, now_ms=day(1000)) == Expired(frozenset({1}), frozenset())


def test_the_head_of_an_expired_ref_expires_with_it_if_it_is_old():
    builder = MetadataBuilder().commits(2).tag("audit", at=1, max_ref_age_ms=20)
    assert expire(builder, older_than_ms=day(3)) == Expired(frozenset({1}), frozenset({"audit"}))


def test_a_branch_that_expires_protects_no_ancestors():
    builder = MetadataBuilder().commits(3).branch("dev", at=2, max_ref_age_ms=20, min_snapshots_to_keep=2)
    assert expire(builder, older_than_ms=day(4)) == Expired(frozenset({1, 2}), frozenset({"dev"}))


def test_a_tag_keeps_its_snapshot_and_not_the_ancestors():
    builder = MetadataBuilder().commits(5).tag("audit", at=3)
    assert expired_ids(builder, older_than_ms=day(6)) == {1, 2, 4}


def test_a_tag_does_not_protect_the_history_that_only_it_has():
    builder = MetadataBuilder().commits(3).tag("audit", at=3).roll_back(to=1)
    assert expired_ids(builder, older_than_ms=day(2) + 1) == {2}


def test_a_branch_protects_the_history_that_only_it_has():
    builder = MetadataBuilder().commits(3).branch("dev", at=3, max_snapshot_age_ms=2**63 - 1).roll_back(to=1)
    assert expired_ids(builder, older_than_ms=day(2) + 1) == set()


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


def test_limits_of_a_branch_go_before_those_of_the_policy():
    builder = MetadataBuilder().commits(4).branch("main", min_snapshots_to_keep=2, max_snapshot_age_ms=DAY_MS)
    assert expired_ids(builder, older_than_ms=day(1), retain_last=4) == {1, 2}


def test_the_age_of_a_branch_is_measured_from_now():
    builder = MetadataBuilder().commits(4).branch("main", max_snapshot_age_ms=2 * DAY_MS)
    assert expired_ids(builder, now_ms=day(4)) == {1}
    assert expired_ids(builder, now_ms=day(4) + 1) == {1, 2}


# Snapshots that no reference leads to.


def test_a_staged_snapshot_stays_while_it_is_young():
    builder = MetadataBuilder().commits(1).stage(at_ms=day(2)).commit(at_ms=day(3))
    assert expired_ids(builder, older_than_ms=day(1) + 1) == {1}
    assert expired_ids(builder, older_than_ms=day(2)) == {1}
    assert expired_ids(builder, older_than_ms=day(2) + 1) == {1, 2}


def test_retaining_a_number_does_not_protect_a_staged_snapshot():
    builder = MetadataBuilder().commits(1).stage(at_ms=day(2)).commit(at_ms=day(3))
    assert expired_ids(builder, older_than_ms=day(4), retain_last=5) == {2}


def test_snapshots_that_were_rolled_back_expire_by_age():
    builder = MetadataBuilder().commits(3).roll_back(to=1)
    assert expired_ids(builder, older_than_ms=day(3)) == {2}


def test_a_limit_of_a_branch_does_not_hold_for_unreferenced_snapshots():
    builder = MetadataBuilder().commits(1).stage(at_ms=day(2)).branch("main", max_snapshot_age_ms=2**63 - 1)
    assert expired_ids(builder, older_than_ms=day(9)) == {2}


def test_a_snapshot_of_an_expired_branch_stays_while_it_is_young():
    builder = MetadataBuilder().commits(2).commits(2, branch="dev").branch("dev", max_ref_age_ms=1)
    assert expire(builder, now_ms=day(5), older_than_ms=day(4)) == Expired(frozenset({1, 3}), frozenset({"dev"}))


# Against the rules written a second time.


NUMBERS = st.integers(0, 25)


def outcome(document: dict[str, Any], policy: dict[str, Any], now_ms: int) -> str:
    """Check one expiry against the rules, and say what kind of expiry it was."""
    metadata = metadata_from_json(document)
    try:
        ids, names = expected_expiry(document, now_ms=now_ms, **policy)
    except ValueError:
        with pytest.raises(UsageError):
            select_expired(metadata, RetentionPolicy(**policy), now_ms)
        return "refused"
    assert select_expired(metadata, RetentionPolicy(**policy), now_ms) == Expired(frozenset(ids), frozenset(names))
    if names:
        return "refs"
    return "nothing" if not ids else "all but one" if len(ids) == len(document["snapshots"]) - 1 else "some"


def test_what_expires_is_what_the_rules_say():
    outcomes = Counter[str]()

    # As in a strategy, 0 stands for "not given".
    @given(histories(), st.lists(NUMBERS, min_size=7, max_size=7))
    @settings(max_examples=250)
    def check(history: dict[str, Any], numbers: list[int]) -> None:
        *properties, older_than_ms, retain_last, explicit, now_ms = numbers
        names = (MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE)
        document = {**full_document(), **history, "snapshot-log": [], "statistics": [], "partition-statistics": []}
        document["properties"] = {name: str(value) for name, value in zip(names, properties, strict=True) if value}
        policy = {
            "older_than_ms": older_than_ms or None,
            "retain_last": retain_last % 6 or None,
            "snapshot_ids": (explicit,) if 0 < explicit <= len(history["snapshots"]) else (),
        }
        outcomes[outcome(document, policy, now_ms)] += 1

    check()
    assert min(outcomes[kind] for kind in ("refused", "refs", "nothing", "some", "all but one")) >= 3, outcomes


# Schemas and specs that nothing needs any more.


def table_with_three_schemas() -> MetadataBuilder:
    fields = [NestedField(field_id=i, name=f"c{i}", type=LONG) for i in (1, 2, 3)]
    builder = MetadataBuilder(schema=Schema(fields=tuple(fields), schema_id=0)).commits(1)
    builder.schema(Schema(fields=tuple(fields[:2]), schema_id=1)).commits(1)
    return builder.schema(Schema(fields=tuple(fields[:1]), schema_id=2)).commits(1)


def test_schemas_of_snapshots_that_stay_and_the_current_one_are_used():
    metadata = table_with_three_schemas().build()
    assert unused_schema_ids(metadata, frozenset()) == ()
    assert unused_schema_ids(metadata, frozenset({1})) == (0,)
    assert unused_schema_ids(metadata, frozenset({1, 2, 3})) == (0, 1)


def test_schemas_that_no_snapshot_names_are_unused():
    metadata = table_with_three_schemas().schema(Schema(fields=(), schema_id=3)).build()
    assert unused_schema_ids(metadata, frozenset({1, 2, 3})) == (0, 1, 2)


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


def test_specs_of_manifests_that_stay_and_the_default_one_are_used():
    builder = MetadataBuilder()
    for spec_id in (1, 2):
        builder.spec(PartitionSpec(spec_id=spec_id, fields=()))
    metadata = builder.build()
    assert unused_spec_ids(metadata, []) == (0, 1)
    assert unused_spec_ids(metadata, [1, 1]) == (0,)
    assert unused_spec_ids(metadata, iter([0, 1])) == ()
