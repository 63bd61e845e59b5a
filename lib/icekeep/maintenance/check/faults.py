"""Faults: their classes, each with a number that never changes its meaning, and the tally that collects them.

The first digit of a number is the level: 1 the metadata file, 2 manifest lists, manifests and their entries, 3 the files that
entries and metadata name, 4 what data and delete files hold, which is looked at with --deep.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any

import msgspec

MAX_EXAMPLES = 20
"""How many faults of a class are reported one by one unless all are asked for."""

MAX_GAPS = 200


class FaultId(IntEnum):
    """The classes of faults by number; no number is reused, not even one that only earlier releases had."""

    # Results have numbers.
    __repr__ = int.__repr__

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
    STATISTICS_OF_MISSING_SNAPSHOT = 124
    METADATA_LOG_UNSORTED = 125
    TABLE_UUID_WRONG = 126
    LOCATION_WRONG = 127
    NEXT_ROW_ID_TOO_LOW = 128
    ROW_IDS_OF_SNAPSHOTS_OVERLAP = 129
    FIRST_ROW_ID_MISSING = 130
    FEATURE_OF_A_LATER_VERSION = 136
    NAME_MAPPING_WRONG = 137
    ODD_HISTORY = 138
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
    EQUALITY_COLUMN_MISSING = 420
    REFERENCE_OF_DELETES_WRONG = 421
    SPLIT_OFFSETS_NOT_OF_FILE = 422
    FIELD_ID_UNKNOWN = 423


class FaultClass(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        rule: what must hold, by the spec.
        readers: what a reader gets wrong while it does not hold.
        mend: what an operator can do about it.
        is_notice: no reader gets a wrong row by it; the table counts as sound all the same.
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


class Gap(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Something that was not checked, and why: nothing is called sound that was not looked at."""

    what: str
    why: str


class Tally:
    """Faults as they are found: each class is counted, and of each the first are kept by place; it is pickled and merged.

    Args:
        whole: numbers of classes of which every fault is kept.

    Attributes:
        unread_manifests: locations of those whose entries could not be read; faults may not be known to be of them.
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
        gap = Gap(what=what, why=why)
        self.gaps_count += gap not in self._gaps
        if len(self._gaps) < MAX_GAPS or gap < self._gaps[-1]:
            self._gaps = sorted({*self._gaps, gap})[:MAX_GAPS]

    def merge(self, other: "Tally") -> None:
        """Take in what was found elsewhere."""
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        for number, faults in other._faults.items():
            self._keep(number, faults)
        self.unread_manifests |= other.unread_manifests
        self.gaps_count += other.gaps_count - len({*self._gaps} & {*other._gaps})
        self._gaps = sorted({*self._gaps, *other._gaps})[:MAX_GAPS]

    def faults(self, number: int) -> tuple[Fault, ...]:
        """The faults of a class that are kept, by place."""
        return tuple(sorted(self._faults.get(number, ()), key=_BY_PLACE))

    def gaps(self) -> tuple[Gap, ...]:
        """What was not checked, as far as it is kept."""
        return tuple(self._gaps)

    def _keep(self, number: int, faults: Sequence[Fault]) -> None:
        kept = self._faults.setdefault(number, [])
        kept.extend(faults)
        # Sorted now and then only: a class may have a fault for each file of the table.
        if number not in self.whole and len(kept) > 10 * MAX_EXAMPLES:
            kept[:] = sorted(kept, key=_BY_PLACE)[:MAX_EXAMPLES]


_BY_PLACE = attrgetter("where", "detail")

_MEASURED = (
    "`icekeep repair` measures the file and sets its entry right; `icekeep compact` with rewrite-all=true rewrites it"
)
_BROKEN = "bring the file back from a backup; else `icekeep repair` with --accept-loss takes its entry out"
_LOOK_AGAIN = "then look with `icekeep check --ref main`, as older snapshots keep the fault until they expire"
_LOST = (
    "`icekeep repair` brings it back from the trash, or with --accept-loss takes its entry out; a backup is better; "
    f"{_LOOK_AGAIN}"
)
_ROW = "`icekeep repair` rewrites the manifest where it is proved to be whole; else go back to a snapshot before it"
_TOTALS = "`icekeep repair` commits totals that are counted again; those of older snapshots stay as they are"
_ENTRY = "`icekeep repair` takes what is wrong out of the entry, and readers go by the file"
_LOAD = "engines refuse to load the table"
_RAISE = "`icekeep repair` raises it; through a REST catalog no client can"
_BACK = (
    "bring the file back from a backup; else `icekeep repair` with --accept-loss and its location: the table begins again from"
    " the last sound metadata file, and later commits are lost"
)

_TEXTS: Mapping[FaultId, tuple[str, str, str]] = {
    FaultId.UNREADABLE_METADATA: (
        "the metadata file is there, and holds the JSON that the spec describes",
        _LOAD,
        _BACK,
    ),
    FaultId.LAST_SEQUENCE_NUMBER_TOO_LOW: (
        "last-sequence-number is the greatest sequence number of all snapshots, or above",
        f"{_LOAD}; a writer that does not refuse gives new deletes a number that rows of today have too",
        "set the number right in a copy of the metadata file, and register that: no engine commits it",
    ),
    FaultId.DOUBLED_ID: (
        "two schemas, partition specs, sort orders or snapshots never have one id",
        "engines choose one of the two, and not all the same one",
        _BACK,
    ),
    FaultId.CURRENT_SCHEMA_MISSING: ("current-schema-id names one of the schemas", _LOAD, _BACK),
    FaultId.DEFAULT_SPEC_MISSING: ("default-spec-id names one of the partition specs", _LOAD, _BACK),
    FaultId.DEFAULT_SORT_ORDER_MISSING: ("default-sort-order-id names one of the sort orders", _LOAD, _BACK),
    FaultId.PARTITION_SOURCE_MISSING: (
        "the source column of each field of the default spec is in the current schema, and one that the transform takes;"
        " that of an older spec is in a schema of the table, where the type of the partition value depends on it",
        "engines refuse to plan scans, or prune nothing by that field",
        "set another default spec, or bring the column back under its id",
    ),
    FaultId.LAST_COLUMN_ID_TOO_LOW: (
        "last-column-id is the greatest field id of all schemas, or above",
        "the next column that is added gets the id of an existing one, and reads its values",
        _RAISE,
    ),
    FaultId.LAST_PARTITION_ID_TOO_LOW: (
        "last-partition-id is the greatest partition field id of all specs, or above",
        "the next partition field gets the id of an existing one; manifests mix the two",
        _RAISE,
    ),
    FaultId.PARTITION_FIELD_DOUBLED: (
        "each spec has a partition field id once, and each name once; from version 2 on an id stands for one source and"
        " transform in all specs",
        "tables of partitions mix values of two fields",
        "no engine renumbers partition fields; write the data into a new table",
    ),
    FaultId.FIELD_ID_DOUBLED: (
        "a schema has each field id once, and each name once at its level",
        "two columns read the values of one",
        _BACK,
    ),
    FaultId.SORT_SOURCE_MISSING: (
        "the source column of each field of the default sort order is in the current schema, and fits its transform",
        f"{_LOAD}, or write unsorted",
        "set another sort order",
    ),
    FaultId.IDENTIFIER_FIELD_WRONG: (
        "identifier fields are required columns of a primitive type, no float, not within lists or maps",
        "engines that upsert refuse, or match rows that are not the same",
        "set other identifier fields",
    ),
    FaultId.CURRENT_SNAPSHOT_MISSING: ("current-snapshot-id names one of the snapshots", _LOAD, _BACK),
    FaultId.REFERENCE_TO_MISSING_SNAPSHOT: (
        "each branch and tag names one of the snapshots",
        f"{_LOAD}, or to read that reference",
        _BACK,
    ),
    FaultId.MAIN_NOT_CURRENT: (
        "branch main is a branch, and names the current snapshot",
        "engines that go by the reference read other rows than those that go by current-snapshot-id",
        _BACK,
    ),
    FaultId.REFERENCE_LIMIT_WRONG: (
        "the ages and counts of a branch or tag are above zero, and a tag has none that are for branches",
        f"{_LOAD}, or expire the reference at once",
        _BACK,
    ),
    FaultId.ANCESTORS_IN_A_CIRCLE: (
        "no snapshot is its own ancestor",
        "engines that walk the history never finish",
        _BACK,
    ),
    FaultId.SEQUENCE_NUMBERS_NOT_RISING: (
        "a snapshot's sequence number is above its parent's, and no two snapshots have one (from version 2 on)",
        "deletes reach rows that were added after them, or do not reach those before",
        "compare the two snapshots' rows; rewrite the wrong one's files and expire it",
    ),
    FaultId.SNAPSHOT_WITHOUT_MANIFESTS: (
        "a snapshot names a manifest list, or its manifests if version 1 made it",
        "the snapshot cannot be read",
        _BACK,
    ),
    FaultId.SNAPSHOT_LOG_WRONG: (
        "the snapshot log is in order of time, but for a minute, none of it later than last-updated-ms; its last entry is"
        " the current snapshot",
        "time travel by time reads another snapshot; Iceberg Java refuses to load a log out of order",
        "read by snapshot id in place of time; expiration takes the entries out",
    ),
    FaultId.STATISTICS_OF_MISSING_SNAPSHOT: (
        "statistics files belong to snapshots of the table, one of each kind for a snapshot",
        "planners take other statistics, or refuse",
        "`icekeep repair` takes the entry out; the file stays",
    ),
    FaultId.METADATA_LOG_UNSORTED: (
        "the metadata log is in order of time, but for a minute, none of it later than last-updated-ms",
        "Iceberg Java refuses to load the table; others do not look",
        "set write.metadata.previous-versions-max to 1, and commit once more, with an engine that loads the table",
    ),
    FaultId.TABLE_UUID_WRONG: (
        "table-uuid is a UUID, and the same as in the metadata file before",
        "engines that compare it take the table for another one and refuse to commit",
        _BACK,
    ),
    FaultId.LOCATION_WRONG: (
        "the table's location is an absolute path or a URI",
        "engines write new files somewhere else",
        "set the location",
    ),
    FaultId.NEXT_ROW_ID_TOO_LOW: (
        "next-row-id is at least first-row-id and added-rows of each snapshot together (version 3)",
        "rows that are added next get the ids of existing rows",
        _RAISE,
    ),
    FaultId.ROW_IDS_OF_SNAPSHOTS_OVERLAP: (
        "the row ids that snapshots assign do not overlap (version 3)",
        "two rows have one id; a change by id changes both",
        "rewrite the later snapshot's files",
    ),
    FaultId.FIRST_ROW_ID_MISSING: (
        "a snapshot of a version 3 table has first-row-id and added-rows, unless it is older than all that have",
        "engines refuse to load the table, or rows have no id",
        _BACK,
    ),
    FaultId.FEATURE_OF_A_LATER_VERSION: (
        "the table uses only what its format version has",
        "engines that go by the version refuse, or read nulls in place of defaults",
        "upgrade the table's format version",
    ),
    FaultId.NAME_MAPPING_WRONG: (
        "the property schema.name-mapping.default is JSON as the spec describes it",
        "files without field ids cannot be read, or read nulls",
        "set the property right, or remove it",
    ),
    FaultId.ODD_HISTORY: (
        "snapshots, logs and summaries tell how the table came to be: a snapshot has a schema that is there, a known operation "
        "(from version 2 on), a time not before its parent's nor after last-updated-ms, and the counts of what it added; the "
        "metadata log has no file twice, nor the current one, and its files are there",
        "live rows are right; time travel, incremental reads, and reports of what a commit did may not be",
        "nothing needs to be done: a snapshot goes with its expiration, a log entry with later commits",
    ),
    FaultId.MANIFEST_LIST_UNREADABLE: (
        "the manifest list of each snapshot is there and whole",
        "the snapshot cannot be read",
        "`icekeep repair` brings a list that is gone back from the trash; else a backup, or go back to another snapshot",
    ),
    FaultId.MANIFEST_UNREADABLE: (
        "each manifest is there and whole",
        "snapshots that name it cannot be read",
        "`icekeep repair` brings it back from the trash; else a backup, or go back to a snapshot before it",
    ),
    FaultId.MANIFEST_LENGTH_WRONG: (
        "manifest_length is the size of the manifest in bytes",
        "engines that read by length cut the manifest off, or refuse",
        _ROW,
    ),
    FaultId.FILE_COUNTS_WRONG: (
        "added, existing and deleted files counts are those of the manifest's entries",
        "engines that skip manifests without live files lose rows; planners go by wrong counts",
        _ROW,
    ),
    FaultId.ROW_COUNTS_WRONG: (
        "added, existing and deleted rows counts are the sums of the entries' record counts",
        "planners go by wrong counts; row ids of version 3 are assigned by them",
        _ROW,
    ),
    FaultId.PARTITION_SUMMARY_WRONG: (
        "the summaries of partition fields hold all partitions of the manifest's live entries",
        "filters skip the manifest, and lose its rows",
        _ROW,
    ),
    FaultId.MIN_SEQUENCE_NUMBER_WRONG: (
        "min_sequence_number is not above the data sequence number of any live entry",
        "engines skip deletes that reach the files of the manifest",
        _ROW,
    ),
    FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG: (
        "a manifest's sequence number is there (from version 2 on) and not above that of a snapshot that has it",
        "files that inherit it take deletes for older than they are",
        "rewrite the files of the manifest",
    ),
    FaultId.MANIFEST_SPEC_MISSING: (
        "partition_spec_id names one of the table's partition specs, the one in the manifest's own header",
        "the manifest cannot be read, or its partitions are read as those of another spec",
        "bring the spec back under its id",
    ),
    FaultId.MANIFEST_CONTENT_WRONG: (
        "a manifest holds data files or delete files, as its row, its header and all its entries say",
        "deletes are read as data, or the other way round",
        "rewrite the manifest's files, or go back to a snapshot before it",
    ),
    FaultId.DOUBLED_FILE: (
        "a file is live in a snapshot once",
        "its rows are read twice",
        "`icekeep repair` with --accept-loss leaves one entry of it; else go back to a snapshot before it",
    ),
    FaultId.TWO_VECTORS: (
        "a data file has one deletion vector at most in a snapshot",
        "engines apply one of the two, and rows come back, or refuse",
        "`icekeep repair` with --accept-loss makes one vector of them; else go back to a snapshot before it",
    ),
    FaultId.DANGLING_DELETE: (
        "a delete file reaches at least one live data file of the snapshot",
        "no reader gets a wrong row; planning reads deletes for nothing",
        "`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
    ),
    FaultId.TOTALS_WRONG: (
        "the totals in a snapshot's summary are those of its live files",
        "planners and reports go by wrong counts; the next snapshots carry them on",
        _TOTALS,
    ),
    FaultId.PARTITION_VALUE_WRONG: (
        "the partition of each entry has the fields and types of the manifest's spec",
        "the manifest cannot be read, or the filter over partitions loses files",
        "rewrite the files of the manifest",
    ),
    FaultId.ENTRY_NUMBER_MISSING: (
        "an existing or deleted entry has its own snapshot id and sequence numbers (from version 2 on)",
        "it inherits those of the manifest, and deletes that reach it no longer do",
        "rewrite the file",
    ),
    FaultId.ENTRY_NUMBER_WRONG: (
        "data sequence numbers are not above file sequence numbers, nor these above the manifest's",
        "deletes reach rows that were added after them, or do not reach those before",
        "rewrite the file",
    ),
    FaultId.ENTRY_CONTRADICTS_ITSELF: (
        "sizes and counts are not negative; equality deletes have their ids; a deletion vector has its blob and data file",
        "engines refuse to plan, or read deletes as something else",
        "take the file out with an engine that can, or go back to a snapshot before it",
    ),
    FaultId.DOUBLED_MANIFEST: (
        "a manifest list names each manifest once",
        "all its rows are read twice",
        "`icekeep repair` with --accept-loss lists it once; else go back to a snapshot before it",
    ),
    FaultId.DELETE_OF_ANOTHER_VERSION: (
        "version 1 has no delete files, version 2 no deletion vectors",
        "engines that go by the version do not apply the deletes, and rows come back",
        "upgrade the table's format version",
    ),
    FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG: (
        "in version 3 a data manifest has a first row id, below next-row-id",
        "rows have no id, or that of another row",
        "rewrite the manifest with an engine that assigns ids",
    ),
    FaultId.BOUND_UNDECODABLE: (
        "bounds are values of their column's type, in the spec's binary form",
        "filters skip files that have the rows, or fail",
        _ENTRY,
    ),
    FaultId.BOUNDS_CROSSED: (
        "a lower bound is not above its upper bound",
        "filters skip the file, and lose its rows",
        _ENTRY,
    ),
    FaultId.METRIC_COUNTS_CONTRADICT: (
        "counts of nulls and NaNs are not above the count of values, none is negative",
        "filters skip the file, and lose its rows",
        _ENTRY,
    ),
    FaultId.EQUALITY_IDS_UNKNOWN: (
        "the ids of equality deletes are columns of a schema of the table",
        "engines refuse, or do not apply the deletes, and rows come back",
        "`icekeep restore` brings back a schema that an expiration by icekeep removed, for as long as its trash is kept; "
        "else delete the rows again by other columns, since no engine brings a column back under its id",
    ),
    FaultId.SPLIT_OFFSETS_WRONG: (
        "split offsets rise, and lie within the file",
        "splits are read twice, or not at all",
        _ENTRY,
    ),
    FaultId.SORT_ORDER_UNKNOWN: (
        "sort_order_id of a file names one of the table's sort orders",
        "readers that trust orders refuse",
        _ENTRY,
    ),
    FaultId.SIZE_TOTAL_WRONG: (
        "total-files-size in a snapshot's summary is the size of its live files",
        "reports of the table's size are wrong; some engines count no bytes of files that they take in",
        _TOTALS,
    ),
    FaultId.MANIFEST_HEADER_WRONG: (
        "the header of a manifest has a partition spec, a schema with its source columns, and from version 2 on the spec's "
        "id and the content",
        "some engines refuse the manifest, or do not see which files are of one partition",
        "`icekeep rewrite_manifests` rewrites it where it is one of several",
    ),
    FaultId.VECTOR_TOO_OLD: (
        "the data sequence number of a deletion vector is not below that of its data file",
        "Iceberg's Java library refuses every scan of the table; other readers pass over the vector",
        "`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
    ),
    FaultId.FIRST_ROW_ID_LOST: (
        "in version 3 an existing entry has the first row id that its data file got, where snapshots that are left show "
        "that it got one",
        "its rows have other ids than they had, and what follows rows by id takes them for new ones",
        "go back to a snapshot before it; the manifests were rewritten by Iceberg's Spark before 1.11, or by another engine "
        "that loses ids",
    ),
    FaultId.DATA_FILE_MISSING: (
        "each live data file is there",
        "scans that need it fail",
        "`icekeep repair` brings it back from the trash, or its rows from older snapshots, or with --accept-loss takes its "
        f"entry out; a backup is better; {_LOOK_AGAIN}",
    ),
    FaultId.FILE_SIZE_WRONG: (
        "file_size_in_bytes is the size of the file in bytes",
        "engines look for the footer where it is not, and fail",
        "`icekeep repair` sets the size right where all rows are there; else bring the file back from a backup",
    ),
    FaultId.DELETE_FILE_MISSING: (
        "each live delete file is there",
        "scans that need it fail, or rows that were deleted come back",
        _LOST,
    ),
    FaultId.STATISTICS_FILE_MISSING: (
        "each statistics file is there, and has the size that the metadata says",
        "planners go without statistics, or fail",
        "bring the file back from a backup; or `icekeep repair` takes its entry out, and then compute the statistics again",
    ),
    FaultId.DATA_AND_DELETE: (
        "a file is a data file or a delete file, not both",
        "deletes are read as rows, or rows as deletes",
        "find out what the file holds, and take it out of the other place",
    ),
    FaultId.DATA_FILE_UNREADABLE: (
        "a data file is whole, and of the format that its entry says",
        "scans that need it fail",
        _BROKEN,
    ),
    FaultId.RECORD_COUNT_WRONG: (
        "record_count is the number of the file's rows",
        "counts from metadata are wrong; row ids of the file overlap with others",
        _MEASURED,
    ),
    FaultId.COLUMN_TYPE_WRONG: (
        "a column's type in the file is its type in the schema, or one that may be promoted to it",
        "engines fail on the file, or read wrong values",
        "rewrite the file with the right types, as `icekeep compact` does where the mark of a time zone alone is wrong",
    ),
    FaultId.REQUIRED_COLUMN_EMPTY: (
        "a required column is in the file, without nulls, or has a default",
        "engines fail, or read nulls where there are none by the schema",
        "make the column optional, or rewrite the file",
    ),
    FaultId.BOUNDS_WRONG: (
        "all values of a column lie within its bounds",
        "filters skip the file, and lose its rows",
        _MEASURED,
    ),
    FaultId.NULL_COUNT_WRONG: (
        "null_value_counts are the counts of nulls",
        "filters for nulls, or for anything but nulls, skip the file, and lose its rows",
        _MEASURED,
    ),
    FaultId.VALUE_COUNT_WRONG: (
        "value_counts are the counts of values, nulls and NaNs among them",
        "filters skip the file, and lose its rows",
        _MEASURED,
    ),
    FaultId.NAN_COUNT_WRONG: (
        "nan_value_counts are the counts of NaNs",
        "filters over NaN skip the file, and lose its rows",
        _MEASURED,
    ),
    FaultId.NOT_SORTED_AS_CLAIMED: (
        "the rows of a file are in the order that its sort_order_id claims",
        "readers that merge sorted files give rows in a wrong order",
        "`icekeep repair` takes the claim out of the entry; or `icekeep compact` with rewrite-all=true sorts the file again",
    ),
    FaultId.PARTITION_NOT_OF_ROWS: (
        "all rows of a file have the partition values of its entry",
        "filters over partitions skip the file, and lose its rows",
        "rewrite the file into its partitions",
    ),
    FaultId.POSITION_OUT_OF_RANGE: (
        "position deletes and vectors name rows that the data file has",
        "counts of deleted rows are wrong",
        "rewrite the position deletes",
    ),
    FaultId.POSITION_DELETES_UNSORTED: (
        "the rows of a position delete file are sorted by file_path and pos",
        "readers that stop at the first greater path miss deletes, and rows come back",
        "`icekeep rewrite_position_deletes` with rewrite-all=true writes them in order",
    ),
    FaultId.DELETE_FILE_UNREADABLE: (
        "a delete file is whole, and has the columns of its kind",
        "scans that need it fail, or rows that were deleted come back",
        _BROKEN,
    ),
    FaultId.VECTOR_UNREADABLE: (
        "a deletion vector lies where its entry says, with its length, magic and checksum",
        "scans that need it fail, or rows that were deleted come back",
        _BROKEN,
    ),
    FaultId.DELETED_COUNT_WRONG: (
        "record_count of a delete file is the number of its rows, of a vector that of its positions",
        "counts from metadata are wrong",
        _MEASURED,
    ),
    FaultId.PUFFIN_FOOTER_WRONG: (
        "the Puffin file of a vector has a footer, and in it the blob with its data file and cardinality",
        "engines that read by the footer fail",
        "`icekeep compact` with delete-file-threshold=1 rewrites the data files without the rows that its vectors delete, where "
        "these are sound; else bring the file back from a backup",
    ),
    FaultId.ROW_ID_DOUBLED: (
        "row ids of live rows are unique, and below next-row-id (version 3)",
        "a change by row id changes two rows",
        "rewrite one of the two files",
    ),
    FaultId.EQUALITY_COLUMN_MISSING: (
        "an equality delete file has all columns of its equality_ids",
        "engines take them for null, and delete other rows",
        "rewrite the deletes",
    ),
    FaultId.REFERENCE_OF_DELETES_WRONG: (
        "referenced_data_file, and equal bounds of file_path, name the one data file of all rows of a position delete file; "
        "no path is outside of the bounds",
        "deletes of other data files are not applied, and rows come back",
        "rewrite the file: `icekeep compact` with rewrite-all=true and a filter that reaches it",
    ),
    FaultId.SPLIT_OFFSETS_NOT_OF_FILE: (
        "split offsets are where the row groups or stripes of the file begin",
        "splits are read twice, or not at all",
        _MEASURED,
    ),
    FaultId.FIELD_ID_UNKNOWN: (
        "columns of a file, and fields in them, have field ids, or names that the table's name mapping knows",
        "the column reads as null",
        "set schema.name-mapping.default",
    ),
}
"""Of each class its rule, what a reader gets wrong while it does not hold, and what an operator can do about it."""

_NOTICES = frozenset(
    (
        FaultId.STATISTICS_OF_MISSING_SNAPSHOT,
        FaultId.ODD_HISTORY,
        FaultId.DANGLING_DELETE,
        FaultId.SORT_ORDER_UNKNOWN,
        FaultId.SIZE_TOTAL_WRONG,
        FaultId.MANIFEST_HEADER_WRONG,
        FaultId.STATISTICS_FILE_MISSING,
        FaultId.POSITION_OUT_OF_RANGE,
    )
)

REACHING_NOTHING = frozenset((FaultId.DANGLING_DELETE, FaultId.VECTOR_TOO_OLD))
OF_EXPIRED = frozenset((FaultId.MANIFEST_LIST_UNREADABLE, FaultId.MANIFEST_UNREADABLE))
"""What is found where lists and manifests go while a table is looked at."""

CLASSES: Mapping[int, FaultClass] = {
    number: FaultClass(number=number, rule=rule, readers=readers, mend=mend, is_notice=number in _NOTICES)
    for number, (rule, readers, mend) in _TEXTS.items()
}
