"""What a fault is: a class of faults with a number that never changes its meaning, and one fault of a class, somewhere.

Faults of what data and delete files hold, looked for with --deep: 401 to 499.

Faults of the files that entries and metadata name: 301 to 399.

Faults of manifest lists, manifests and their entries: 201 to 299.

Faults of the metadata file: 101 to 199.

All classes of faults, by number.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

MAX_EXAMPLES = 20
"""So many faults of a class are told one by one where nobody asks for all."""

MAX_GAPS = 200


class FaultClass(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        number: of three digits; the first is the level (1 metadata, 2 manifest lists and manifests, 3 files, 4 content).
        name: in lower case, with dashes.
        rule: what must hold, by the spec.
        readers: what a reader gets wrong while it does not hold.
        mend: what an operator can do about it.
        is_notice: no reader gets a wrong row by it; it is told, and the table counts as sound all the same.
    """

    number: int
    name: str
    rule: str
    readers: str
    mend: str
    is_notice: bool = False


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


DATA_FILE_UNREADABLE = 401

_MEASURED = (
    "`icekeep repair` measures the file and sets its entry right; `icekeep compact` with rewrite-all=true rewrites it"
)
_BROKEN = "bring the file back from a backup; else `icekeep repair` with --accept-loss takes its entry out"
_ANEW = "rewrite the file: `icekeep compact` with rewrite-all=true and a filter that reaches it"

CONTENT_CLASSES = (
    FaultClass(
        number=DATA_FILE_UNREADABLE,
        name="data-file-unreadable",
        rule="a data file is whole, and of the format that its entry says",
        readers="scans that need it fail",
        mend=_BROKEN,
    ),
    FaultClass(
        number=402,
        name="record-count-wrong",
        rule="record_count is the number of the file's rows",
        readers="counts from metadata are wrong; row ids of the file overlap with others",
        mend=_MEASURED,
    ),
    FaultClass(
        number=403,
        name="column-type-wrong",
        rule="a column's type in the file is its type in the schema, or one that may be promoted to it",
        readers="engines fail on the file, or read wrong values",
        mend="rewrite the file with the right types, as `icekeep compact` does where the mark of a time zone alone is wrong",
    ),
    FaultClass(
        number=404,
        name="required-column-empty",
        rule="a required column is in the file, without nulls, or has a default",
        readers="engines fail, or read nulls where there are none by the schema",
        mend="make the column optional, or rewrite the file",
    ),
    FaultClass(
        number=405,
        name="bounds-wrong",
        rule="all values of a column lie within its bounds",
        readers="filters skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=406,
        name="null-count-wrong",
        rule="null_value_counts are the counts of nulls",
        readers="filters for nulls, or for anything but nulls, skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=407,
        name="value-count-wrong",
        rule="value_counts are the counts of values, nulls and NaNs among them",
        readers="filters skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=408,
        name="nan-count-wrong",
        rule="nan_value_counts are the counts of NaNs",
        readers="filters over NaN skip the file, and lose its rows",
        mend=_MEASURED,
    ),
    FaultClass(
        number=409,
        name="not-sorted-as-claimed",
        rule="the rows of a file are in the order that its sort_order_id claims",
        readers="readers that merge sorted files give rows in a wrong order",
        mend="`icekeep repair` takes the claim out of the entry; or `icekeep compact` with rewrite-all=true sorts the file again",
    ),
    FaultClass(
        number=410,
        name="partition-not-of-rows",
        rule="all rows of a file have the partition values of its entry",
        readers="filters over partitions skip the file, and lose its rows",
        mend="rewrite the file into its partitions",
    ),
    FaultClass(
        number=411,
        name="position-out-of-range",
        rule="position deletes and vectors name rows that the data file has",
        readers="counts of deleted rows are wrong",
        mend="rewrite the position deletes",
        is_notice=True,
    ),
    FaultClass(
        number=412,
        name="position-deletes-unsorted",
        rule="the rows of a position delete file are sorted by file_path and pos",
        readers="readers that stop at the first greater path miss deletes, and rows come back",
        mend="`icekeep repair` sorts them into a new file; in version 3 `icekeep rewrite_position_deletes` does",
    ),
    FaultClass(
        number=413,
        name="delete-file-unreadable",
        rule="a delete file is whole, and has the columns of its kind",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_BROKEN,
    ),
    FaultClass(
        number=414,
        name="vector-unreadable",
        rule="a deletion vector lies where its entry says, with its length, magic and checksum",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_BROKEN,
    ),
    FaultClass(
        number=415,
        name="deleted-count-wrong",
        rule="record_count of a delete file is the number of its rows, of a vector that of its positions",
        readers="counts from metadata are wrong",
        mend=_MEASURED,
    ),
    FaultClass(
        number=416,
        name="puffin-footer-wrong",
        rule="the Puffin file of a vector has a footer, and in it the blob with its data file and cardinality",
        readers="engines that read by the footer fail",
        mend="`icekeep repair` writes its vectors into a new file where they are sound; else bring the file back from a backup",
    ),
    FaultClass(
        number=417,
        name="row-id-doubled",
        rule="row ids of live rows are unique, and below next-row-id (version 3)",
        readers="what is changed by row id changes two rows",
        mend="rewrite one of the two files",
    ),
    FaultClass(
        number=418,
        name="bloom-filter-dishonest",
        rule="a Bloom filter is whole, and says of no value of its column chunk that it is not there",
        readers="filters by equality skip the row group, and lose its rows",
        mend=_ANEW,
    ),
    FaultClass(
        number=419,
        name="row-group-statistics-wrong",
        rule="the statistics of a Parquet row group hold all its values",
        readers="filters skip the row group, and lose its rows",
        mend="rewrite the file",
    ),
    FaultClass(
        number=420,
        name="equality-column-missing",
        rule="an equality delete file has all columns of its equality_ids",
        readers="engines take them for null, and delete other rows",
        mend="rewrite the deletes",
    ),
    FaultClass(
        number=421,
        name="reference-of-deletes-wrong",
        rule="referenced_data_file, and equal bounds of file_path, name the one data file of all rows of a position delete file; "
        "no path is outside of the bounds",
        readers="deletes of other data files are not applied, and rows come back",
        mend=_ANEW,
    ),
    FaultClass(
        number=422,
        name="split-offsets-not-of-file",
        rule="split offsets are where the row groups or stripes of the file begin",
        readers="splits are read twice, or not at all",
        mend=_MEASURED,
    ),
    FaultClass(
        number=423,
        name="field-id-unknown",
        rule="columns of a file, and fields in them, have field ids, or names that the table's name mapping knows",
        readers="the column reads as null",
        mend="set schema.name-mapping.default",
    ),
)


DATA_FILE_MISSING = 301
FILE_SIZE_WRONG = 302
DELETE_FILE_MISSING = 303
STATISTICS_FILE_MISSING = 304

_LOOK_AGAIN = "then look with `icekeep check --ref main`, as older snapshots keep the fault until they expire"
_LOST = (
    "`icekeep repair` brings it back from the trash, or with --accept-loss takes its entry out; a backup is better; "
    f"{_LOOK_AGAIN}"
)

FILE_CLASSES = (
    FaultClass(
        number=DATA_FILE_MISSING,
        name="data-file-missing",
        rule="each live data file is there",
        readers="scans that need it fail",
        mend="`icekeep repair` brings it back from the trash, or its rows from older snapshots, or with --accept-loss takes its "
        f"entry out; a backup is better; {_LOOK_AGAIN}",
    ),
    FaultClass(
        number=FILE_SIZE_WRONG,
        name="file-size-wrong",
        rule="file_size_in_bytes is the size of the file in bytes",
        readers="engines look for the footer where it is not, and fail",
        mend="`icekeep repair` sets the size right where all rows are there; else bring the file back from a backup",
    ),
    FaultClass(
        number=DELETE_FILE_MISSING,
        name="delete-file-missing",
        rule="each live delete file is there",
        readers="scans that need it fail, or rows that were deleted come back",
        mend=_LOST,
    ),
    FaultClass(
        number=STATISTICS_FILE_MISSING,
        name="statistics-file-missing",
        rule="each statistics file is there, and has the size that the metadata says",
        readers="planners go without statistics, or fail",
        mend="bring the file back from a backup; or `icekeep repair` takes its entry out, and then compute the statistics again",
        is_notice=True,
    ),
    FaultClass(
        number=306,
        name="data-and-delete",
        rule="a file is a data file or a delete file, not both",
        readers="deletes are read as rows, or rows as deletes",
        mend="find out what the file holds, and take it out of the other place",
    ),
)


LIST_UNREADABLE = 201
MANIFEST_UNREADABLE = 202
HEADER_WRONG = 234
DOUBLED_FILE = 212
TWO_VECTORS = 213
DANGLING_DELETE = 214
DOUBLED_MANIFEST = 220
VECTOR_TOO_OLD = 235
FIRST_ROW_ID_LOST = 236
REACHING_NOTHING = frozenset((DANGLING_DELETE, VECTOR_TOO_OLD))
OF_EXPIRED = frozenset((LIST_UNREADABLE, MANIFEST_UNREADABLE))
"""What is found where lists and manifests go while a table is looked at."""

_ROW = "`icekeep repair` rewrites the manifest where it is proved to be whole; else go back to a snapshot before it"
_TOTALS = "`icekeep repair` commits totals that are counted again; those of older snapshots stay as they are"
_ENTRY = "`icekeep repair` takes what is wrong out of the entry, and readers go by the file"

MANIFEST_CLASSES = (
    FaultClass(
        number=LIST_UNREADABLE,
        name="manifest-list-unreadable",
        rule="the manifest list of each snapshot is there and whole",
        readers="the snapshot cannot be read",
        mend=(
            "`icekeep repair` brings a list that is gone back from the trash, or puts it together where the table proves what it "
            "held; else a backup, or go back to another snapshot"
        ),
    ),
    FaultClass(
        number=MANIFEST_UNREADABLE,
        name="manifest-unreadable",
        rule="each manifest is there and whole",
        readers="snapshots that name it cannot be read",
        mend="`icekeep repair` brings it back from the trash; else a backup, or go back to a snapshot before it",
    ),
    FaultClass(
        number=203,
        name="manifest-length-wrong",
        rule="manifest_length is the size of the manifest in bytes",
        readers="engines that read by length cut the manifest off, or refuse",
        mend=_ROW,
    ),
    FaultClass(
        number=204,
        name="file-counts-wrong",
        rule="added, existing and deleted files counts are those of the manifest's entries",
        readers="engines that skip manifests without live files lose rows; planners go by wrong counts",
        mend=_ROW,
    ),
    FaultClass(
        number=205,
        name="row-counts-wrong",
        rule="added, existing and deleted rows counts are the sums of the entries' record counts",
        readers="planners go by wrong counts; row ids of version 3 are assigned by them",
        mend=_ROW,
    ),
    FaultClass(
        number=206,
        name="partition-summary-wrong",
        rule="the summaries of partition fields hold all partitions of the manifest's live entries",
        readers="filters skip the manifest, and lose its rows",
        mend=_ROW,
    ),
    FaultClass(
        number=207,
        name="min-sequence-number-wrong",
        rule="min_sequence_number is not above the data sequence number of any live entry",
        readers="engines skip deletes that reach the files of the manifest",
        mend=_ROW,
    ),
    FaultClass(
        number=208,
        name="manifest-sequence-number-wrong",
        rule="a manifest's sequence number is there (from version 2 on) and not above that of a snapshot that has it",
        readers="files that inherit it take deletes for older than they are",
        mend="rewrite the files of the manifest",
    ),
    FaultClass(
        number=210,
        name="manifest-spec-missing",
        rule="partition_spec_id names one of the table's partition specs, the one in the manifest's own header",
        readers="the manifest cannot be read, or its partitions are read as those of another spec",
        mend="bring the spec back under its id",
    ),
    FaultClass(
        number=211,
        name="manifest-content-wrong",
        rule="a manifest holds data files or delete files, as its row, its header and all its entries say",
        readers="deletes are read as data, or the other way round",
        mend="rewrite the manifest's files, or go back to a snapshot before it",
    ),
    FaultClass(
        number=DOUBLED_FILE,
        name="doubled-file",
        rule="a file is live in a snapshot once",
        readers="its rows are read twice",
        mend="`icekeep repair` with --accept-loss leaves one entry of it; else go back to a snapshot before it",
    ),
    FaultClass(
        number=TWO_VECTORS,
        name="two-vectors",
        rule="a data file has one deletion vector at most in a snapshot",
        readers="engines apply one of the two, and rows come back, or refuse",
        mend="`icekeep repair` with --accept-loss makes one vector of them; else go back to a snapshot before it",
    ),
    FaultClass(
        number=DANGLING_DELETE,
        name="dangling-delete",
        rule="a delete file reaches at least one live data file of the snapshot",
        readers="none gets a wrong row; planning reads deletes for nothing",
        mend="`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
        is_notice=True,
    ),
    FaultClass(
        number=215,
        name="totals-wrong",
        rule="the totals in a snapshot's summary are those of its live files",
        readers="planners and reports go by wrong counts; the next snapshots carry them on",
        mend=_TOTALS,
    ),
    FaultClass(
        number=216,
        name="partition-value-wrong",
        rule="the partition of each entry has the fields and types of the manifest's spec",
        readers="the manifest cannot be read, or the filter over partitions loses files",
        mend="rewrite the files of the manifest",
    ),
    FaultClass(
        number=217,
        name="entry-number-missing",
        rule="an existing or deleted entry has its own snapshot id and sequence numbers (from version 2 on)",
        readers="it inherits those of the manifest, and deletes that reach it no longer do",
        mend="rewrite the file",
    ),
    FaultClass(
        number=218,
        name="entry-number-wrong",
        rule="data sequence numbers are not above file sequence numbers, nor these above the manifest's",
        readers="deletes reach rows that were added after them, or do not reach those before",
        mend="rewrite the file",
    ),
    FaultClass(
        number=219,
        name="entry-contradicts-itself",
        rule="sizes and counts are not negative; equality deletes have their ids; a deletion vector has its blob and data file",
        readers="engines refuse to plan, or read deletes as something else",
        mend="take the file out with an engine that can, or go back to a snapshot before it",
    ),
    FaultClass(
        number=DOUBLED_MANIFEST,
        name="doubled-manifest",
        rule="a manifest list names each manifest once",
        readers="all its rows are read twice",
        mend="`icekeep repair` with --accept-loss lists it once; else go back to a snapshot before it",
    ),
    FaultClass(
        number=221,
        name="delete-of-another-version",
        rule="version 1 has no delete files, version 2 no deletion vectors",
        readers="engines that go by the version do not apply the deletes, and rows come back",
        mend="upgrade the table's format version",
    ),
    FaultClass(
        number=222,
        name="first-row-id-of-manifest-wrong",
        rule="in version 3 a data manifest has a first row id, below next-row-id",
        readers="rows have no id, or that of another row",
        mend="rewrite the manifest with an engine that assigns ids",
    ),
    FaultClass(
        number=225,
        name="bound-undecodable",
        rule="bounds are values of their column's type, in the spec's binary form",
        readers="filters skip files that have the rows, or fail",
        mend=_ENTRY,
    ),
    FaultClass(
        number=226,
        name="bounds-crossed",
        rule="a lower bound is not above its upper bound",
        readers="filters skip the file, and lose its rows",
        mend=_ENTRY,
    ),
    FaultClass(
        number=227,
        name="metric-counts-contradict",
        rule="counts of nulls and NaNs are not above the count of values, none is negative",
        readers="filters skip the file, and lose its rows",
        mend=_ENTRY,
    ),
    FaultClass(
        number=228,
        name="equality-ids-unknown",
        rule="the ids of equality deletes are columns of a schema of the table",
        readers="engines refuse, or do not apply the deletes, and rows come back",
        mend="`icekeep restore` brings back a schema that an expiration by icekeep removed, for as long as its trash is kept; "
        "else delete the rows again by other columns, since no engine brings a column back under its id",
    ),
    FaultClass(
        number=230,
        name="split-offsets-wrong",
        rule="split offsets rise, and lie within the file",
        readers="splits are read twice, or not at all",
        mend=_ENTRY,
    ),
    FaultClass(
        number=231,
        name="sort-order-unknown",
        rule="sort_order_id of a file names one of the table's sort orders",
        readers="readers that trust orders refuse",
        mend=_ENTRY,
        is_notice=True,
    ),
    FaultClass(
        number=232,
        name="changes-of-summary-wrong",
        rule="the counts of added files in a summary are those of the entries that the snapshot added",
        readers="reports of what a commit did are wrong",
        mend="nothing needs to be done; a snapshot's summary is never changed",
        is_notice=True,
    ),
    FaultClass(
        number=233,
        name="size-total-wrong",
        rule="total-files-size in a snapshot's summary is the size of its live files",
        readers="reports of the table's size are wrong; some engines count no bytes of files that they take in",
        mend=_TOTALS,
        is_notice=True,
    ),
    FaultClass(
        number=HEADER_WRONG,
        name="manifest-header-wrong",
        rule="the header of a manifest has a partition spec, a schema with its source columns, and from version 2 on the spec's "
        "id and the content",
        readers="some engines refuse the manifest, or do not see which files are of one partition",
        mend="`icekeep rewrite_manifests` rewrites it where it is one of several",
        is_notice=True,
    ),
    FaultClass(
        number=VECTOR_TOO_OLD,
        name="vector-too-old",
        rule="the data sequence number of a deletion vector is not below that of its data file",
        readers="Iceberg's Java library refuses every scan of the table; other readers pass over the vector",
        mend="`icekeep repair`, or `icekeep rewrite_manifests` with remove-dangling-deletes=true, takes it out",
    ),
    FaultClass(
        number=FIRST_ROW_ID_LOST,
        name="first-row-id-lost",
        rule="in version 3 an existing entry has the first row id that its data file got, where snapshots that are left show "
        "that it got one",
        readers="its rows have other ids than they had, and what follows rows by id takes them for new ones",
        mend="go back to a snapshot before it; the manifests were rewritten by Iceberg's Spark before 1.11, or by another engine "
        "that loses ids",
    ),
)


METADATA_UNREADABLE = 101
UUID_WRONG = 126
NEXT_ROW_ID_TOO_LOW = 128
LATER_FEATURE = 136

_LOAD = "engines refuse to load the table"
_RAISE = "`icekeep repair` raises it; through a REST catalog no client can"
_FIX = "set the number right in a copy of the metadata file, and register that: no engine commits it"
_BACK = (
    "bring the file back from a backup; else `icekeep repair` with --accept-loss and its location: the table begins again from"
    " the last sound metadata file, and later commits are lost"
)

METADATA_CLASSES = (
    FaultClass(
        number=METADATA_UNREADABLE,
        name="unreadable-metadata",
        rule="the metadata file is there, and holds the JSON that the spec describes",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=102,
        name="last-sequence-number-too-low",
        rule="last-sequence-number is the greatest sequence number of all snapshots, or above",
        readers=f"{_LOAD}; a writer that does not refuse gives new deletes a number that rows of today have too",
        mend=_FIX,
    ),
    FaultClass(
        number=103,
        name="doubled-id",
        rule="two schemas, partition specs, sort orders or snapshots never have one id",
        readers="engines choose one of the two, and not the same one",
        mend=_BACK,
    ),
    FaultClass(
        number=104,
        name="current-schema-missing",
        rule="current-schema-id names one of the schemas",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=105,
        name="default-spec-missing",
        rule="default-spec-id names one of the partition specs",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=106,
        name="default-sort-order-missing",
        rule="default-sort-order-id names one of the sort orders",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=107,
        name="partition-source-missing",
        rule=(
            "the source column of each field of the default spec is in the current schema, and one that the transform takes;"
            " that of an older spec is in a schema of the table, where the type of the partition value depends on it"
        ),
        readers="engines refuse to plan scans, or prune nothing by that field",
        mend="set another default spec, or bring the column back under its id",
    ),
    FaultClass(
        number=108,
        name="last-column-id-too-low",
        rule="last-column-id is the greatest field id of all schemas, or above",
        readers="the next column that is added gets the id of one that is there, and reads its values",
        mend=_RAISE,
    ),
    FaultClass(
        number=109,
        name="last-partition-id-too-low",
        rule="last-partition-id is the greatest partition field id of all specs, or above",
        readers="the next partition field gets the id of one that is there; manifests mix the two",
        mend=_RAISE,
    ),
    FaultClass(
        number=110,
        name="partition-field-doubled",
        rule=(
            "each spec has a partition field id once, and each name once; from version 2 on an id stands for one source and"
            " transform in all specs"
        ),
        readers="tables of partitions mix values of two fields",
        mend="no engine renumbers partition fields; write the data into a new table",
    ),
    FaultClass(
        number=111,
        name="field-id-doubled",
        rule="a schema has each field id once, and each name once at its level",
        readers="two columns read the values of one",
        mend=_BACK,
    ),
    FaultClass(
        number=112,
        name="sort-source-missing",
        rule="the source column of each field of the default sort order is in the current schema, and fits its transform",
        readers=f"{_LOAD}, or write unsorted",
        mend="set another sort order",
    ),
    FaultClass(
        number=113,
        name="identifier-field-wrong",
        rule="identifier fields are required columns of a primitive type, no float, not within lists or maps",
        readers="engines that upsert refuse, or match rows that are not the same",
        mend="set other identifier fields",
    ),
    FaultClass(
        number=114,
        name="current-snapshot-missing",
        rule="current-snapshot-id names one of the snapshots",
        readers=_LOAD,
        mend=_BACK,
    ),
    FaultClass(
        number=115,
        name="reference-to-missing-snapshot",
        rule="each branch and tag names one of the snapshots",
        readers=f"{_LOAD}, or to read that reference",
        mend=_BACK,
    ),
    FaultClass(
        number=116,
        name="main-not-current",
        rule="branch main is a branch, and names the current snapshot",
        readers="engines that go by the reference read other rows than those that go by current-snapshot-id",
        mend=_BACK,
    ),
    FaultClass(
        number=117,
        name="reference-limit-wrong",
        rule="the ages and counts of a branch or tag are above zero, and a tag has none that are for branches",
        readers=f"{_LOAD}, or expire the reference at once",
        mend=_BACK,
    ),
    FaultClass(
        number=118,
        name="ancestors-in-a-circle",
        rule="no snapshot is its own ancestor",
        readers="engines that walk the history do not come to an end",
        mend=_BACK,
    ),
    FaultClass(
        number=119,
        name="sequence-numbers-not-rising",
        rule="a snapshot's sequence number is above its parent's, and no two snapshots have one (from version 2 on)",
        readers="deletes reach rows that were added after them, or do not reach those before",
        mend="compare the two snapshots' rows; rewrite the wrong one's files and expire it",
    ),
    FaultClass(
        number=120,
        name="snapshot-without-manifests",
        rule="a snapshot names a manifest list, or its manifests if version 1 made it",
        readers="the snapshot cannot be read",
        mend=_BACK,
    ),
    FaultClass(
        number=121,
        name="snapshot-log-wrong",
        rule=(
            "the snapshot log is in order of time, but for a minute, none of it later than last-updated-ms; its last entry is"
            " the current snapshot"
        ),
        readers="time travel by time reads another snapshot; Iceberg Java refuses to load a log out of order",
        mend="read by snapshot id in place of time; expiration takes the entries out",
    ),
    FaultClass(
        number=122,
        name="metadata-log-wrong",
        rule="the metadata log has no file twice, and not the current one",
        readers="none reads it; tools that go back to older metadata take a wrong one",
        mend="nothing needs to be done; later commits push the entries out",
        is_notice=True,
    ),
    FaultClass(
        number=123,
        name="logged-metadata-missing",
        rule="the metadata files of the metadata log are there",
        readers="none reads them; the table cannot be put back to that version",
        mend="nothing needs to be done; later commits push the entries out",
        is_notice=True,
    ),
    FaultClass(
        number=124,
        name="statistics-of-missing-snapshot",
        rule="statistics files belong to snapshots of the table, one of each kind for a snapshot",
        readers="planners take other statistics, or refuse",
        mend="`icekeep repair` takes the entry out; the file stays",
        is_notice=True,
    ),
    FaultClass(
        number=125,
        name="metadata-log-unsorted",
        rule="the metadata log is in order of time, but for a minute, none of it later than last-updated-ms",
        readers="Iceberg Java refuses to load the table; others do not look",
        mend="set write.metadata.previous-versions-max to 1, and commit once more, with an engine that loads the table",
    ),
    FaultClass(
        number=UUID_WRONG,
        name="table-uuid-wrong",
        rule="table-uuid is a UUID, and the same as in the metadata file before",
        readers="engines that compare it take the table for another one and refuse to commit",
        mend=_BACK,
    ),
    FaultClass(
        number=127,
        name="location-wrong",
        rule="the table's location is an absolute path or a URI",
        readers="engines write new files to somewhere else",
        mend="set the location",
    ),
    FaultClass(
        number=NEXT_ROW_ID_TOO_LOW,
        name="next-row-id-too-low",
        rule="next-row-id is at least first-row-id and added-rows of each snapshot together (version 3)",
        readers="rows that are added next get the ids of rows that are there",
        mend=_RAISE,
    ),
    FaultClass(
        number=129,
        name="row-ids-of-snapshots-overlap",
        rule="the row ids that snapshots assign do not overlap (version 3)",
        readers="two rows have one id; what is changed by id changes both",
        mend="rewrite the later snapshot's files",
    ),
    FaultClass(
        number=130,
        name="first-row-id-missing",
        rule="a snapshot of a version 3 table has first-row-id and added-rows, unless it is older than all that have",
        readers="engines refuse to load the table, or rows have no id",
        mend=_BACK,
    ),
    FaultClass(
        number=131,
        name="schema-of-snapshot-missing",
        rule="schema-id of a snapshot names one of the schemas",
        readers="time travel to the snapshot fails, or reads by the schema of today",
        mend="read the snapshot's rows by the current schema; it goes with its expiration",
    ),
    FaultClass(
        number=132,
        name="time-runs-backwards",
        rule="a snapshot is not made before its parent, nor after last-updated-ms, by more than a minute",
        readers="time travel by time reads another snapshot; expiration by age takes another one",
        mend="set the clocks right; the snapshot goes with its expiration",
        is_notice=True,
    ),
    FaultClass(
        number=133,
        name="operation-missing",
        rule="the summary of a snapshot says its operation: append, replace, overwrite or delete (from version 2 on)",
        readers="incremental readers refuse, or read rewritten rows as new ones",
        mend="do not read incrementally over this snapshot; it goes with its expiration",
    ),
    FaultClass(
        number=LATER_FEATURE,
        name="feature-of-a-later-version",
        rule="the table uses only what its format version has",
        readers="engines that go by the version refuse, or read nulls in place of defaults",
        mend="upgrade the table's format version",
    ),
    FaultClass(
        number=137,
        name="name-mapping-wrong",
        rule="the property schema.name-mapping.default is JSON as the spec describes it",
        readers="files without field ids cannot be read, or read nulls",
        mend="set the property right, or remove it",
    ),
)


CLASSES: Mapping[int, FaultClass] = {
    one.number: one for one in (*METADATA_CLASSES, *MANIFEST_CLASSES, *FILE_CLASSES, *CONTENT_CLASSES)
}
