"""The arguments of the job, held against a table."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.errors import ExpressionError, IcekeepError, NotFoundError, OptionError, UsageError
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, RewriteRules, checked_rules
from icekeep.planning.transcode import BoundPart, PartitionPart
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import build_spec
from icekeep.spec.types import DOUBLE, INT, LONG, STRING
from kit.cases import for_each
from kit.tables import COLUMNS

DATA, DELETES = ManifestContent
BY_TWO = build_spec(COLUMNS, [("kind", "identity", None), ("id", "bucket[4]", None)])


def metadata() -> TableMetadata:
    """A table whose spec 0 is by kind and a bucket of ids, and whose later spec 3, the default, is by score."""
    made = new_table_metadata(schema=COLUMNS, spec=BY_TWO, location="memory://b/t", table_uuid="u", now_ms=0)
    later = replace(build_spec(COLUMNS, [("score", "identity", None)]), spec_id=3)
    return replace(made, partition_specs=(*made.partition_specs, later), default_spec_id=3)


def requested(**arguments: Any) -> RewriteRules:
    return checked_rules(metadata(), RewriteManifestsRequest(**arguments))


def parts(content: ManifestContent = DATA, spec_id: int = 0, **arguments: Any) -> tuple[Any, ...]:
    return requested(**{"spec_id": spec_id, **arguments}).sort_of(metadata(), spec_id, content)


KIND, BUCKET = PartitionPart(0, STRING), PartitionPart(1, INT)


# Specs.


@for_each(("spec_id", "chosen"), [(None, (3,)), (0, (0,)), ("0", (0,)), (3, (3,)), ("all", (0, 3))])
def test_a_spec_is_the_default_one_or_a_named_one_or_all(spec_id: Any, chosen: tuple[int, ...]):
    assert requested(spec_id=spec_id).spec_ids == chosen


def test_a_spec_that_the_table_lacks_is_not_found():
    with pytest.raises(NotFoundError) as caught:
        requested(spec_id=7)
    assert str(caught.value) == "the table at 'memory://b/t' has no partition spec 7; it has 0, 3"


@pytest.mark.parametrize("spec_id", ["any", "", "1.5"])
def test_a_spec_that_is_no_number_is_refused(spec_id: str):
    with pytest.raises(UsageError, match=r"give the number of a partition spec, or 'all'"):
        requested(spec_id=spec_id)


# What to cluster by.


def test_all_partition_fields_unless_told_otherwise():
    assert parts() == (KIND, BUCKET)
    assert parts(spec_id=3) == (PartitionPart(0, DOUBLE),)


@for_each("sort_by", [["id_bucket", "kind"], ("id_bucket", "kind"), "id_bucket,kind", " id_bucket , kind "])
def test_names_come_as_a_list_or_as_text_with_commas(sort_by: Any):
    assert requested(spec_id=0, sort_by=sort_by).sort_by == ("id_bucket", "kind")
    assert parts(sort_by=sort_by) == (BUCKET, KIND)


def test_data_may_be_clustered_by_columns_and_deletes_by_partitions_alone():
    asked = {"sort_by": "score, id_bucket"}
    assert parts(**asked) == (BoundPart(3, DOUBLE), BUCKET)
    assert parts(DELETES, **asked) == (BUCKET, KIND)
    assert parts(DELETES, sort_by="id") == (KIND, BUCKET)
    assert parts(DELETES) == (KIND, BUCKET)


def test_a_workload_says_what_to_cluster_by():
    assert parts(workload=["score > 3", "kind = 'a'"])[:1] == (BoundPart(3, DOUBLE),)
    assert parts(workload=["kind = 'a'"])[0] == KIND
    assert parts(workload="score > 3 ; kind = 'a';") == parts(workload=["score > 3", "kind = 'a'"])
    assert [text.strip() for text in requested(spec_id=0, workload="score > 3 ; kind = 'a';").workload] == [
        "score > 3",
        "kind = 'a'",
    ]
    assert BoundPart(1, LONG) in parts(workload=["id = 4"]) or BUCKET in parts(workload=["id = 4"])


@for_each(
    ("arguments", "error", "message"),
    [
        ({"sort_by": []}, UsageError, "sort_by is empty"),
        ({"sort_by": ""}, UsageError, "sort_by has an empty name"),
        ({"sort_by": "kind,,id"}, UsageError, "sort_by has an empty name"),
        ({"sort_by": "kind,kind"}, UsageError, "sort_by names 'kind' twice"),
        ({"sort_by": "week"}, NotFoundError, "neither a partition field nor a column 'week'"),
        ({"sort_by": "kind", "workload": ["kind = 'a'"]}, UsageError, "sort_by and workload both say"),
        ({"workload": ["kind ="]}, ExpressionError, ""),
        ({"workload": ["week = 1"]}, NotFoundError, "week"),
        ({"spec_id": "all", "sort_by": "id_bucket"}, NotFoundError, "'id_bucket'"),
        ({"options": {"drop-dangling": "true"}}, OptionError, "drop-dangling"),
        ({"options": {"remove-dangling-deletes": "perhaps"}}, OptionError, "remove-dangling-deletes"),
        ({"options": {"measure-planning": "true"}}, OptionError, "measure-planning"),
    ],
)
def test_what_is_asked_wrongly_is_an_error_of_one_line(
    arguments: dict[str, Any], error: type[IcekeepError], message: str
):
    with pytest.raises(error) as caught:
        requested(**{"spec_id": 0, **arguments})
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert not text.endswith(".")


def test_an_empty_workload_is_none():
    assert (
        requested(workload="").workload == requested(workload=" ; ").workload == requested(workload=()).workload == ()
    )
    assert requested(spec_id=0, sort_by="kind", workload="").sort_by == ("kind",)


# Options.


def test_options_are_off_unless_they_are_asked_for():
    assert requested().options == requested(options={}).options == RewriteManifestsOptions()
    options = RewriteManifestsOptions()
    assert not options.remove_dangling_deletes


@pytest.mark.parametrize("given", [True, "true", "TRUE"])
def test_options_come_as_text_or_as_values(given: Any):
    asked = {"remove-dangling-deletes": given}
    expected = RewriteManifestsOptions(remove_dangling_deletes=True)
    assert requested(options=asked).options == requested(options=expected).options == expected
