"""What a fault is: a class of faults with a number that never changes its meaning, and one fault of a class, somewhere.

Faults of what data and delete files hold, looked for with --deep: 401 to 499.

Faults of the files that entries and metadata name: 301 to 399.

Faults of manifest lists, manifests and their entries: 201 to 299.

Faults of the metadata file: 101 to 199.

All classes of faults, by number.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

MAX_EXAMPLES = 20
"""So many faults of a class are told one by one where nobody asks for all."""

MAX_GAPS = 200


class FaultId(IntEnum):
    """The classes of faults by number; a number never changes its meaning, and none is given twice."""

    UNREADABLE_METADATA = 101
    LAST_SEQUENCE_NUMBER_TOO_LOW = 102
    DOUBLED_ID = 103
    CURRENT_SCHEMA_MISSING = 104
    DEFAULT_SPEC_MISSING = 105
    DEFAULT_SORT_ORDER_MISSING = 106
    PARTITION_SOURCE_MISSING = 107
    LAST_COLUMN_ID_TOO_LOW = 108
    LAST_PARTITION_ID_TOO_LOW = 109
    PARTITION_FIELD_DOUBLED = 110
    FIELD_ID_DOUBLED = 111
    SORT_SOURCE_MISSING = 112
    IDENTIFIER_FIELD_WRONG = 113
    CURRENT_SNAPSHOT_MISSING = 114
    REFERENCE_TO_MISSING_SNAPSHOT = 115
    MAIN_NOT_CURRENT = 116
    REFERENCE_LIMIT_WRONG = 117
    ANCESTORS_IN_A_CIRCLE = 118
    SEQUENCE_NUMBERS_NOT_RISING = 119
    SNAPSHOT_WITHOUT_MANIFESTS = 120
    SNAPSHOT_LOG_WRONG = 121
    METADATA_LOG_WRONG = 122
    LOGGED_METADATA_MISSING = 123
    STATISTICS_OF_MISSING_SNAPSHOT = 124
    METADATA_LOG_UNSORTED = 125
    TABLE_UUID_WRONG = 126
    LOCATION_WRONG = 127
    NEXT_ROW_ID_TOO_LOW = 128
    ROW_IDS_OF_SNAPSHOTS_OVERLAP = 129
    FIRST_ROW_ID_MISSING = 130
    SCHEMA_OF_SNAPSHOT_MISSING = 131
    TIME_RUNS_BACKWARDS = 132
    OPERATION_MISSING = 133
    FEATURE_OF_A_LATER_VERSION = 136
    NAME_MAPPING_WRONG = 137
    MANIFEST_LIST_UNREADABLE = 201
    MANIFEST_UNREADABLE = 202
    MANIFEST_LENGTH_WRONG = 203
    FILE_COUNTS_WRONG = 204
    ROW_COUNTS_WRONG = 205
    PARTITION_SUMMARY_WRONG = 206
    MIN_SEQUENCE_NUMBER_WRONG = 207
    MANIFEST_SEQUENCE_NUMBER_WRONG = 208
    MANIFEST_SPEC_MISSING = 210
    MANIFEST_CONTENT_WRONG = 211
    DOUBLED_FILE = 212
    TWO_VECTORS = 213
    DANGLING_DELETE = 214
    TOTALS_WRONG = 215
    PARTITION_VALUE_WRONG = 216
    ENTRY_NUMBER_MISSING = 217
    ENTRY_NUMBER_WRONG = 218
    ENTRY_CONTRADICTS_ITSELF = 219
    DOUBLED_MANIFEST = 220
    DELETE_OF_ANOTHER_VERSION = 221
    FIRST_ROW_ID_OF_MANIFEST_WRONG = 222
    BOUND_UNDECODABLE = 225
    BOUNDS_CROSSED = 226
    METRIC_COUNTS_CONTRADICT = 227
    EQUALITY_IDS_UNKNOWN = 228
    SPLIT_OFFSETS_WRONG = 230
    SORT_ORDER_UNKNOWN = 231
    CHANGES_OF_SUMMARY_WRONG = 232
    SIZE_TOTAL_WRONG = 233
    MANIFEST_HEADER_WRONG = 234
    VECTOR_TOO_OLD = 235
    FIRST_ROW_ID_LOST = 236
    DATA_FILE_MISSING = 301
    FILE_SIZE_WRONG = 302
    DELETE_FILE_MISSING = 303
    STATISTICS_FILE_MISSING = 304
    DATA_AND_DELETE = 306
    DATA_FILE_UNREADABLE = 401
    RECORD_COUNT_WRONG = 402
    COLUMN_TYPE_WRONG = 403
    REQUIRED_COLUMN_EMPTY = 404
    BOUNDS_WRONG = 405
    NULL_COUNT_WRONG = 406
    VALUE_COUNT_WRONG = 407
    NAN_COUNT_WRONG = 408
    NOT_SORTED_AS_CLAIMED = 409
    PARTITION_NOT_OF_ROWS = 410
    POSITION_OUT_OF_RANGE = 411
    POSITION_DELETES_UNSORTED = 412
    DELETE_FILE_UNREADABLE = 413
    VECTOR_UNREADABLE = 414
    DELETED_COUNT_WRONG = 415
    PUFFIN_FOOTER_WRONG = 416
    ROW_ID_DOUBLED = 417
    BLOOM_FILTER_DISHONEST = 418
    ROW_GROUP_STATISTICS_WRONG = 419
    EQUALITY_COLUMN_MISSING = 420
    REFERENCE_OF_DELETES_WRONG = 421
    SPLIT_OFFSETS_NOT_OF_FILE = 422
    FIELD_ID_UNKNOWN = 423


class FaultClass(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        number: of three digits; the first is the level (1 metadata, 2 manifest lists and manifests, 3 files, 4 content).
        rule: what must hold, by the spec.
        readers: what a reader gets wrong while it does not hold.
        mend: what an operator can do about it.
        is_notice: no reader gets a wrong row by it; it is told, and the table counts as sound all the same.
    """

    number: FaultId
    rule: str
    readers: str
    mend: str
    is_notice: bool = False

    @property
    def name(self) -> str:
        """In lower case, with dashes."""
        return self.number.name.lower().replace("_", "-")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        number: of its class.
        where: the location of the file that has it, or the part of the metadata, such as "ref 'main'".
        detail: what is wrong there, in one sentence without a full stop.
        snapshot_id: the oldest snapshot of the table in which it is seen; `None` where it is of no snapshot.
        facts: the same for machines: numbers, texts and lists of these.
    """

    number: int
    where: str
    detail: str
    snapshot_id: int | None = None
    facts: Mapping[str, Any] = {}


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was not checked, and why: nothing is said to be sound that was not looked at."""

    what: str
    why: str


class Tally:
    """Faults as they are found: each class is counted, and of each the first are kept by place; it is pickled and merged.

    Args:
        whole: numbers of classes of which every fault is kept.

    Attributes:
        unread_manifests: locations of those whose entries could not be read; faults of their files may not be told of them.
    """

    def __init__(self, whole: Iterable[int] = ()) -> None:
        self.whole = frozenset(whole)
        self.counts: dict[int, int] = {}
        self.gaps_count = 0
        self.unread_manifests: set[str] = set()
        self._faults: dict[int, list[Fault]] = {}
        self._gaps: list[Gap] = []

    def add(self, fault: Fault) -> None:
        """Count a fault, and keep it if there is room."""
        self.counts[fault.number] = self.counts.get(fault.number, 0) + 1
        self._keep(fault.number, [fault])

    def gap(self, what: str, why: str) -> None:
        """Note what could not be checked."""
        self.gaps_count += 1
        if len(self._gaps) == MAX_GAPS and (what, why) >= _gap_order(self._gaps[-1]):
            return
        self._gaps = sorted({*self._gaps, Gap(what=what, why=why)}, key=_gap_order)[:MAX_GAPS]

    def unread_manifest(self, location: str, why: str) -> None:
        """Note that the entries of a manifest could not be read."""
        self.unread_manifests.add(location)
        self.gap(f"the files of manifest {location!r}", why)

    def merge(self, other: "Tally") -> None:
        """Take in what was found elsewhere."""
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        for number, faults in other._faults.items():
            self._keep(number, faults)
        self.unread_manifests |= other.unread_manifests
        self.gaps_count += other.gaps_count
        self._gaps = sorted({*self._gaps, *other._gaps}, key=_gap_order)[:MAX_GAPS]

    def faults(self, number: int) -> tuple[Fault, ...]:
        """The faults of a class that are kept, by place."""
        return tuple(sorted(self._faults.get(number, ()), key=_order))

    def gaps(self) -> tuple[Gap, ...]:
        """What was not checked, as far as it is kept."""
        return tuple(self._gaps)

    def _keep(self, number: int, faults: Sequence[Fault]) -> None:
        kept = self._faults.setdefault(number, [])
        kept.extend(faults)
        # Sorted now and then only: a class may have a fault for each file of the table.
        if number not in self.whole and len(kept) > 10 * MAX_EXAMPLES:
            kept[:] = sorted(kept, key=_order)[:MAX_EXAMPLES]


def _order(fault: Fault) -> tuple[str, str]:
    return fault.where, fault.detail


def _gap_order(gap: Gap) -> tuple[str, str]:
    return gap.what, gap.why


_MEASURED = (
    "`icekeep repair` measures the file and sets its entry right; `icekeep compact` with rewrite-all=true rewrites it"
)
_BROKEN = "bring the file back from a backup; else `icekeep repair` with --accept-loss takes its entry out"
_ANEW = "rewrite the file: `icekeep compact` with rewrite-all=true and a filter that reaches it"

CONTENT_CLASSES = (
    FaultClass(
        number=FaultId.DATA_FILE_UNREADABLE,
        rule="a data file is whole, and of the format that its entry says",
        readers="scans that need it fail",
        mend=_BROKEN,
    ),
    FaultClass(
        number=FaultId.RECORD_COUNT_WRONG,
        rule="record_count is the number of the file's rows",
        readers="counts from metadata are wrong; row ids of the file overlap with others",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.COLUMN_TYPE_WRONG,
        rule="a column's type in the file is its type in the schema, or one that may be promoted to it",
        readers="engines fail on the file, or read wrong values",
        mend="rewrite the file with the right types, as `icekeep compact` does where the mark of a time zone alone is wrong",
    ),
    FaultClass(
        number=FaultId.REQUIRED_COLUMN_EMPTY,
        rule="a required column is in the file, without nulls, or has a default",
        readers="engines fail, or read nulls where there are none by the schema",
        mend="make the column optional, or rewrite the file",
    ),
    FaultClass(
        number=FaultId.BOUNDS_WRONG,
        rule="all values of a column lie within its bounds",
        readers="filters skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.NULL_COUNT_WRONG,
        rule="null_value_counts are the counts of nulls",
        readers="filters for nulls, or for anything but nulls, skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.VALUE_COUNT_WRONG,
        rule="value_counts are the counts of values, nulls and NaNs among them",
        readers="filters skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.NAN_COUNT_WRONG,
        rule="nan_value_counts are the counts of NaNs",
        readers="filters over NaN skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.NOT_SORTED_AS_CLAIMED,
        rule="the rows of a file are in the order that its sort_order_id claims",
        readers="readers that merge sorted files give rows in a wrong order",
        mend="`icekeep repair` takes the claim out of the entry; or `icekeep compact` with rewrite-all=true sorts the file again",
    ),
    FaultClass(
        number=FaultId.PARTITION_NOT_OF_ROWS,
        rule="all rows of a file have the partition values of its entry",
        readers="filters over partitions skip the file, and lose its rows",
        mend="rewrite the file into its partitions",
    ),
    FaultClass(
        number=FaultId.POSITION_OUT_OF_RANGE,
        rule="position deletes and vectors name rows that the data file has",
        readers="counts of deleted rows are wrong",
        mend="rewrite the position deletes",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.POSITION_DELETES_UNSORTED,
        rule="the rows of a position delete file are sorted by file_path and pos",
        readers="readers that stop at the first greater path miss deletes, and rows come back",
        mend="`icekeep rewrite_position_deletes` with rewrite-all=true writes them in order",
    ),
    FaultClass(
        number=FaultId.DELETE_FILE_UNREADABLE,
        rule="a delete file is whole, and has the columns of its kind",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_BROKEN,
    ),
    FaultClass(
        number=FaultId.VECTOR_UNREADABLE,
        rule="a deletion vector lies where its entry says, with its length, magic and checksum",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_BROKEN,
    ),
    FaultClass(
        number=FaultId.DELETED_COUNT_WRONG,
        rule="record_count of a delete file is the number of its rows, of a vector that of its positions",
        readers="counts from metadata are wrong",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.PUFFIN_FOOTER_WRONG,
        rule="the Puffin file of a vector has a footer, and in it the blob with its data file and cardinality",
        readers="engines that read by the footer fail",
        mend="`icekeep compact` with delete-file-threshold=1 rewrites the data files without the rows that its vectors delete, "
        "where these are sound; else bring the file back from a backup",
    ),
    FaultClass(
        number=FaultId.ROW_ID_DOUBLED,
        rule="row ids of live rows are unique, and below next-row-id (version 3)",
        readers="what is changed by row id changes two rows",
        mend="rewrite one of the two files",
    ),
    FaultClass(
        number=FaultId.BLOOM_FILTER_DISHONEST,
        rule="a Bloom filter is whole, and says of no value of its column chunk that it is not there",
        readers="filters by equality skip the row group, and lose its rows",
        mend=_ANEW,
    ),
    FaultClass(
        number=FaultId.ROW_GROUP_STATISTICS_WRONG,
        rule="the statistics of a Parquet row group hold all its values",
        readers="filters skip the row group, and lose its rows",
        mend="rewrite the file",
    ),
    FaultClass(
        number=FaultId.EQUALITY_COLUMN_MISSING,
        rule="an equality delete file has all columns of its equality_ids",
        readers="engines take them for null, and delete other rows",
        mend="rewrite the deletes",
    ),
    FaultClass(
        number=FaultId.REFERENCE_OF_DELETES_WRONG,
        rule="referenced_data_file, and equal bounds of file_path, name the one data file of all rows of a position delete file; "
        "no path is outside of the bounds",
        readers="deletes of other data files are not applied, and rows come back",
        mend=_ANEW,
    ),
    FaultClass(
        number=FaultId.SPLIT_OFFSETS_NOT_OF_FILE,
        rule="split offsets are where the row groups or stripes of the file begin",
        readers="splits are read twice, or not at all",
        mend=_MEASURED,
    ),
    FaultClass(
        number=FaultId.FIELD_ID_UNKNOWN,
        rule="columns of a file, and fields in them, have field ids, or names that the table's name mapping knows",
        readers="the column reads as null",
        mend="set schema.name-mapping.default",
    ),
)


_LOOK_AGAIN = "then look with `icekeep check --ref main`, as older snapshots keep the fault until they expire"
_LOST = (
    "`icekeep repair` brings it back from the trash, or with --accept-loss takes its entry out; a backup is better; "
    f"{_LOOK_AGAIN}"
)

FILE_CLASSES = (
    FaultClass(
        number=FaultId.DATA_FILE_MISSING,
        rule="each live data file is there",
        readers="scans that need it fail",
        mend="`icekeep repair` brings it back from the trash, or its rows from older snapshots, or with --accept-loss takes its "
        f"entry out; a backup is better; {_LOOK_AGAIN}",
    ),
    FaultClass(
        number=FaultId.FILE_SIZE_WRONG,
        rule="file_size_in_bytes is the size of the file in bytes",
        readers="engines look for the footer where it is not, and fail",
        mend="`icekeep repair` sets the size right where all rows are there; else bring the file back from a backup",
    ),
    FaultClass(
        number=FaultId.DELETE_FILE_MISSING,
        rule="each live delete file is there",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_LOST,
    ),
    FaultClass(
        number=FaultId.STATISTICS_FILE_MISSING,
        rule="each statistics file is there, and has the size that the metadata says",
        readers="planners go without statistics, or fail",
        mend="bring the file back from a backup; or `icekeep repair` takes its entry out, and then compute the statistics again",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.DATA_AND_DELETE,
        rule="a file is a data file or a delete file, not both",
        readers="deletes are read as rows, or rows as deletes",
        mend="find out what the file holds, and take it out of the other place",
    ),
)


REACHING_NOTHING = frozenset((FaultId.DANGLING_DELETE, FaultId.VECTOR_TOO_OLD))
OF_EXPIRED = frozenset((FaultId.MANIFEST_LIST_UNREADABLE, FaultId.MANIFEST_UNREADABLE))
"""What is found where lists and manifests go while a table is looked at."""

_ROW = "`icekeep repair` rewrites the manifest where it is proved to be whole; else go back to a snapshot before it"
_TOTALS = "`icekeep repair` commits totals that are counted again; those of older snapshots stay as they are"
_ENTRY = "`icekeep repair` takes what is wrong out of the entry, and readers go by the file"

MANIFEST_CLASSES = (
    FaultClass(
        number=FaultId.MANIFEST_LIST_UNREADABLE,
        rule="the manifest list of each snapshot is there and whole",
        readers="the snapshot cannot be read",
        mend=(
            "`icekeep repair` brings a list that is gone back from the trash; else a backup, or go back to another snapshot"
        ),
    ),
    FaultClass(
        number=FaultId.MANIFEST_UNREADABLE,
        rule="each manifest is there and whole",
        readers="snapshots that name it cannot be read",
        mend="`icekeep repair` brings it back from the trash; else a backup, or go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.MANIFEST_LENGTH_WRONG,
        rule="manifest_length is the size of the manifest in bytes",
        readers="engines that read by length cut the manifest off, or refuse",
        mend=_ROW,
    ),
    FaultClass(
        number=FaultId.FILE_COUNTS_WRONG,
        rule="added, existing and deleted files counts are those of the manifest's entries",
        readers="engines that skip manifests without live files lose rows; planners go by wrong counts",
        mend=_ROW,
    ),
    FaultClass(
        number=FaultId.ROW_COUNTS_WRONG,
        rule="added, existing and deleted rows counts are the sums of the entries' record counts",
        readers="planners go by wrong counts; row ids of version 3 are assigned by them",
        mend=_ROW,
    ),
    FaultClass(
        number=FaultId.PARTITION_SUMMARY_WRONG,
        rule="the summaries of partition fields hold all partitions of the manifest's live entries",
        readers="filters skip the manifest, and lose its rows",
        mend=_ROW,
    ),
    FaultClass(
        number=FaultId.MIN_SEQUENCE_NUMBER_WRONG,
        rule="min_sequence_number is not above the data sequence number of any live entry",
        readers="engines skip deletes that reach the files of the manifest",
        mend=_ROW,
    ),
    FaultClass(
        number=FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG,
        rule="a manifest's sequence number is there (from version 2 on) and not above that of a snapshot that has it",
        readers="files that inherit it take deletes for older than they are",
        mend="rewrite the files of the manifest",
    ),
    FaultClass(
        number=FaultId.MANIFEST_SPEC_MISSING,
        rule="partition_spec_id names one of the table's partition specs, the one in the manifest's own header",
        readers="the manifest cannot be read, or its partitions are read as those of another spec",
        mend="bring the spec back under its id",
    ),
    FaultClass(
        number=FaultId.MANIFEST_CONTENT_WRONG,
        rule="a manifest holds data files or delete files, as its row, its header and all its entries say",
        readers="deletes are read as data, or the other way round",
        mend="rewrite the manifest's files, or go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.DOUBLED_FILE,
        rule="a file is live in a snapshot once",
        readers="its rows are read twice",
        mend="`icekeep repair` with --accept-loss leaves one entry of it; else go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.TWO_VECTORS,
        rule="a data file has one deletion vector at most in a snapshot",
        readers="engines apply one of the two, and rows come back, or refuse",
        mend="`icekeep repair` with --accept-loss makes one vector of them; else go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.DANGLING_DELETE,
        rule="a delete file reaches at least one live data file of the snapshot",
        readers="none gets a wrong row; planning reads deletes for nothing",
        mend="`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.TOTALS_WRONG,
        rule="the totals in a snapshot's summary are those of its live files",
        readers="planners and reports go by wrong counts; the next snapshots carry them on",
        mend=_TOTALS,
    ),
    FaultClass(
        number=FaultId.PARTITION_VALUE_WRONG,
        rule="the partition of each entry has the fields and types of the manifest's spec",
        readers="the manifest cannot be read, or the filter over partitions loses files",
        mend="rewrite the files of the manifest",
    ),
    FaultClass(
        number=FaultId.ENTRY_NUMBER_MISSING,
        rule="an existing or deleted entry has its own snapshot id and sequence numbers (from version 2 on)",
        readers="it inherits those of the manifest, and deletes that reach it no longer do",
        mend="rewrite the file",
    ),
    FaultClass(
        number=FaultId.ENTRY_NUMBER_WRONG,
        rule="data sequence numbers are not above file sequence numbers, nor these above the manifest's",
        readers="deletes reach rows that were added after them, or do not reach those before",
        mend="rewrite the file",
    ),
    FaultClass(
        number=FaultId.ENTRY_CONTRADICTS_ITSELF,
        rule="sizes and counts are not negative; equality deletes have their ids; a deletion vector has its blob and data file",
        readers="engines refuse to plan, or read deletes as something else",
        mend="take the file out with an engine that can, or go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.DOUBLED_MANIFEST,
        rule="a manifest list names each manifest once",
        readers="all its rows are read twice",
        mend="`icekeep repair` with --accept-loss lists it once; else go back to a snapshot before it",
    ),
    FaultClass(
        number=FaultId.DELETE_OF_ANOTHER_VERSION,
        rule="version 1 has no delete files, version 2 no deletion vectors",
        readers="engines that go by the version do not apply the deletes, and rows come back",
        mend="upgrade the table's format version",
    ),
    FaultClass(
        number=FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG,
        rule="in version 3 a data manifest has a first row id, below next-row-id",
        readers="rows have no id, or that of another row",
        mend="rewrite the manifest with an engine that assigns ids",
    ),
    FaultClass(
        number=FaultId.BOUND_UNDECODABLE,
        rule="bounds are values of their column's type, in the spec's binary form",
        readers="filters skip files that have the rows, or fail",
        mend=_ENTRY,
    ),
    FaultClass(
        number=FaultId.BOUNDS_CROSSED,
        rule="a lower bound is not above its upper bound",
        readers="filters skip the file, and lose its rows",
        mend=_ENTRY,
    ),
    FaultClass(
        number=FaultId.METRIC_COUNTS_CONTRADICT,
        rule="counts of nulls and NaNs are not above the count of values, none is negative",
        readers="filters skip the file, and lose its rows",
        mend=_ENTRY,
    ),
    FaultClass(
        number=FaultId.EQUALITY_IDS_UNKNOWN,
        rule="the ids of equality deletes are columns of a schema of the table",
        readers="engines refuse, or do not apply the deletes, and rows come back",
        mend="`icekeep restore` brings back a schema that an expiration by icekeep removed, for as long as its trash is kept; "
        "else delete the rows again by other columns, since no engine brings a column back under its id",
    ),
    FaultClass(
        number=FaultId.SPLIT_OFFSETS_WRONG,
        rule="split offsets rise, and lie within the file",
        readers="splits are read twice, or not at all",
        mend=_ENTRY,
    ),
    FaultClass(
        number=FaultId.SORT_ORDER_UNKNOWN,
        rule="sort_order_id of a file names one of the table's sort orders",
        readers="readers that trust orders refuse",
        mend=_ENTRY,
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.CHANGES_OF_SUMMARY_WRONG,
        rule="the counts of added files in a summary are those of the entries that the snapshot added",
        readers="reports of what a commit did are wrong",
        mend="nothing needs to be done; a snapshot's summary is never changed",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.SIZE_TOTAL_WRONG,
        rule="total-files-size in a snapshot's summary is the size of its live files",
        readers="reports of the table's size are wrong; some engines count no bytes of files that they take in",
        mend=_TOTALS,
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.MANIFEST_HEADER_WRONG,
        rule="the header of a manifest has a partition spec, a schema with its source columns, and from version 2 on the spec's "
        "id and the content",
        readers="some engines refuse the manifest, or do not see which files are of one partition",
        mend="`icekeep rewrite_manifests` rewrites it where it is one of several",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.VECTOR_TOO_OLD,
        rule="the data sequence number of a deletion vector is not below that of its data file",
        readers="Iceberg's Java library refuses every scan of the table; other readers pass over the vector",
        mend="`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
    ),
    FaultClass(
        number=FaultId.FIRST_ROW_ID_LOST,
        rule="in version 3 an existing entry has the first row id that its data file got, where snapshots that are left show "
        "that it got one",
        readers="its rows have other ids than they had, and what follows rows by id takes them for new ones",
        mend="go back to a snapshot before it; the manifests were rewritten by Iceberg's Spark before 1.11, or by another engine "
        "that loses ids",
    ),
)


_LOAD = "engines refuse to load the table"
_RAISE = "`icekeep repair` raises it; through a REST catalog no client can"
_FIX = "set the number right in a copy of the metadata file, and register that: no engine commits it"
_BACK = (
    "bring the file back from a backup; else `icekeep repair` with --accept-loss and its location: the table begins again from"
    " the last sound metadata file, and later commits are lost"
)

METADATA_CLASSES = (
    FaultClass(
        number=FaultId.UNREADABLE_METADATA,
        rule="the metadata file is there, and holds the JSON that the spec describes",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.LAST_SEQUENCE_NUMBER_TOO_LOW,
        rule="last-sequence-number is the greatest sequence number of all snapshots, or above",
        readers=f"{_LOAD}; a writer that does not refuse gives new deletes a number that rows of today have too",
        mend=_FIX,
    ),
    FaultClass(
        number=FaultId.DOUBLED_ID,
        rule="two schemas, partition specs, sort orders or snapshots never have one id",
        readers="engines choose one of the two, and not the same one",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.CURRENT_SCHEMA_MISSING,
        rule="current-schema-id names one of the schemas",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.DEFAULT_SPEC_MISSING,
        rule="default-spec-id names one of the partition specs",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.DEFAULT_SORT_ORDER_MISSING,
        rule="default-sort-order-id names one of the sort orders",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.PARTITION_SOURCE_MISSING,
        rule=(
            "the source column of each field of the default spec is in the current schema, and one that the transform takes;"
            " that of an older spec is in a schema of the table, where the type of the partition value depends on it"
        ),
        readers="engines refuse to plan scans, or prune nothing by that field",
        mend="set another default spec, or bring the column back under its id",
    ),
    FaultClass(
        number=FaultId.LAST_COLUMN_ID_TOO_LOW,
        rule="last-column-id is the greatest field id of all schemas, or above",
        readers="the next column that is added gets the id of one that is there, and reads its values",
        mend=_RAISE,
    ),
    FaultClass(
        number=FaultId.LAST_PARTITION_ID_TOO_LOW,
        rule="last-partition-id is the greatest partition field id of all specs, or above",
        readers="the next partition field gets the id of one that is there; manifests mix the two",
        mend=_RAISE,
    ),
    FaultClass(
        number=FaultId.PARTITION_FIELD_DOUBLED,
        rule=(
            "each spec has a partition field id once, and each name once; from version 2 on an id stands for one source and"
            " transform in all specs"
        ),
        readers="tables of partitions mix values of two fields",
        mend="no engine renumbers partition fields; write the data into a new table",
    ),
    FaultClass(
        number=FaultId.FIELD_ID_DOUBLED,
        rule="a schema has each field id once, and each name once at its level",
        readers="two columns read the values of one",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.SORT_SOURCE_MISSING,
        rule="the source column of each field of the default sort order is in the current schema, and fits its transform",
        readers=f"{_LOAD}, or write unsorted",
        mend="set another sort order",
    ),
    FaultClass(
        number=FaultId.IDENTIFIER_FIELD_WRONG,
        rule="identifier fields are required columns of a primitive type, no float, not within lists or maps",
        readers="engines that upsert refuse, or match rows that are not the same",
        mend="set other identifier fields",
    ),
    FaultClass(
        number=FaultId.CURRENT_SNAPSHOT_MISSING,
        rule="current-snapshot-id names one of the snapshots",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.REFERENCE_TO_MISSING_SNAPSHOT,
        rule="each branch and tag names one of the snapshots",
        readers=f"{_LOAD}, or to read that reference",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.MAIN_NOT_CURRENT,
        rule="branch main is a branch, and names the current snapshot",
        readers="engines that go by the reference read other rows than those that go by current-snapshot-id",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.REFERENCE_LIMIT_WRONG,
        rule="the ages and counts of a branch or tag are above zero, and a tag has none that are for branches",
        readers=f"{_LOAD}, or expire the reference at once",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.ANCESTORS_IN_A_CIRCLE,
        rule="no snapshot is its own ancestor",
        readers="engines that walk the history do not come to an end",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.SEQUENCE_NUMBERS_NOT_RISING,
        rule="a snapshot's sequence number is above its parent's, and no two snapshots have one (from version 2 on)",
        readers="deletes reach rows that were added after them, or do not reach those before",
        mend="compare the two snapshots' rows; rewrite the wrong one's files and expire it",
    ),
    FaultClass(
        number=FaultId.SNAPSHOT_WITHOUT_MANIFESTS,
        rule="a snapshot names a manifest list, or its manifests if version 1 made it",
        readers="the snapshot cannot be read",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.SNAPSHOT_LOG_WRONG,
        rule=(
            "the snapshot log is in order of time, but for a minute, none of it later than last-updated-ms; its last entry is"
            " the current snapshot"
        ),
        readers="time travel by time reads another snapshot; Iceberg Java refuses to load a log out of order",
        mend="read by snapshot id in place of time; expiration takes the entries out",
    ),
    FaultClass(
        number=FaultId.METADATA_LOG_WRONG,
        rule="the metadata log has no file twice, and not the current one",
        readers="none reads it; tools that go back to older metadata take a wrong one",
        mend="nothing needs to be done; later commits push the entries out",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.LOGGED_METADATA_MISSING,
        rule="the metadata files of the metadata log are there",
        readers="none reads them; the table cannot be put back to that version",
        mend="nothing needs to be done; later commits push the entries out",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.STATISTICS_OF_MISSING_SNAPSHOT,
        rule="statistics files belong to snapshots of the table, one of each kind for a snapshot",
        readers="planners take other statistics, or refuse",
        mend="`icekeep repair` takes the entry out; the file stays",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.METADATA_LOG_UNSORTED,
        rule="the metadata log is in order of time, but for a minute, none of it later than last-updated-ms",
        readers="Iceberg Java refuses to load the table; others do not look",
        mend="set write.metadata.previous-versions-max to 1, and commit once more, with an engine that loads the table",
    ),
    FaultClass(
        number=FaultId.TABLE_UUID_WRONG,
        rule="table-uuid is a UUID, and the same as in the metadata file before",
        readers="engines that compare it take the table for another one and refuse to commit",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.LOCATION_WRONG,
        rule="the table's location is an absolute path or a URI",
        readers="engines write new files to somewhere else",
        mend="set the location",
    ),
    FaultClass(
        number=FaultId.NEXT_ROW_ID_TOO_LOW,
        rule="next-row-id is at least first-row-id and added-rows of each snapshot together (version 3)",
        readers="rows that are added next get the ids of rows that are there",
        mend=_RAISE,
    ),
    FaultClass(
        number=FaultId.ROW_IDS_OF_SNAPSHOTS_OVERLAP,
        rule="the row ids that snapshots assign do not overlap (version 3)",
        readers="two rows have one id; what is changed by id changes both",
        mend="rewrite the later snapshot's files",
    ),
    FaultClass(
        number=FaultId.FIRST_ROW_ID_MISSING,
        rule="a snapshot of a version 3 table has first-row-id and added-rows, unless it is older than all that have",
        readers="engines refuse to load the table, or rows have no id",
        mend=_BACK,
    ),
    FaultClass(
        number=FaultId.SCHEMA_OF_SNAPSHOT_MISSING,
        rule="schema-id of a snapshot names one of the schemas",
        readers="time travel to the snapshot fails, or reads by the schema of today",
        mend="read the snapshot's rows by the current schema; it goes with its expiration",
    ),
    FaultClass(
        number=FaultId.TIME_RUNS_BACKWARDS,
        rule="a snapshot is not made before its parent, nor after last-updated-ms, by more than a minute",
        readers="time travel by time reads another snapshot; expiration by age takes another one",
        mend="set the clocks right; the snapshot goes with its expiration",
        is_notice=True,
    ),
    FaultClass(
        number=FaultId.OPERATION_MISSING,
        rule="the summary of a snapshot says its operation: append, replace, overwrite or delete (from version 2 on)",
        readers="incremental readers refuse, or read rewritten rows as new ones",
        mend="do not read incrementally over this snapshot; it goes with its expiration",
    ),
    FaultClass(
        number=FaultId.FEATURE_OF_A_LATER_VERSION,
        rule="the table uses only what its format version has",
        readers="engines that go by the version refuse, or read nulls in place of defaults",
        mend="upgrade the table's format version",
    ),
    FaultClass(
        number=FaultId.NAME_MAPPING_WRONG,
        rule="the property schema.name-mapping.default is JSON as the spec describes it",
        readers="files without field ids cannot be read, or read nulls",
        mend="set the property right, or remove it",
    ),
)


CLASSES: Mapping[int, FaultClass] = {
    one.number: one for one in (*METADATA_CLASSES, *MANIFEST_CLASSES, *FILE_CLASSES, *CONTENT_CLASSES)
}
