import pytest

from icekeep.errors import ExpressionError, InvalidTableError, NotFoundError
from icekeep.planning.scan.plan import bound_filter, select_manifests
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day
from icekeep.spec.types import TIMESTAMPTZ, NestedField
from kit.metadata import MetadataBuilder

MOMENT_MS = 1_772_281_845_678
SCHEMA = Schema(schema_id=1, fields=(NestedField(field_id=3, name="ts", type=TIMESTAMPTZ),))
SPEC = PartitionSpec(spec_id=1, fields=(PartitionField(source_id=3, field_id=1000, name="ts_day", transform=Day()),))
TABLE = MetadataBuilder().schema(SCHEMA).spec(SPEC).build()


def test_text_is_read_with_the_moment_of_the_job_and_bound_to_the_schema_of_the_scan():
    expected = bind(parse_where("ts >= '2026-02-27T00:00:00Z' AND ts < '2026-02-28T12:30:45.678Z'"), SCHEMA)
    assert bound_filter("ts >= today - 1 AND ts < now", TABLE, SCHEMA, MOMENT_MS) == expected
    assert bound_filter(parse_where("ts >= today - 1 AND ts < now", MOMENT_MS), TABLE, SCHEMA, 0) == expected


def test_what_does_not_fit_the_table_is_refused():
    with pytest.raises(
        NotFoundError, match=r"'ts_day': it is a partition field, day of column 'ts'; write days\(ts\) = '2026"
    ):
        bound_filter("ts_day = '2026-01-31'", TABLE, SCHEMA, MOMENT_MS)
    with pytest.raises(ExpressionError, match="'ts'"):
        bound_filter("ts = 5", TABLE, SCHEMA, MOMENT_MS)


@pytest.mark.parametrize("where", [None, "ts < now"])
def test_a_manifest_of_a_spec_that_the_table_has_not_is_an_error_of_the_table(where):
    rows = ALWAYS_TRUE if where is None else bound_filter(where, TABLE, SCHEMA, MOMENT_MS)
    manifest = ManifestFile(
        manifest_path="m", manifest_length=1, partition_spec_id=7, content=ManifestContent.DATA, added_snapshot_id=1
    )
    with pytest.raises(InvalidTableError, match="has no partition spec 7"):
        select_manifests(TABLE, SCHEMA, [manifest], rows)
