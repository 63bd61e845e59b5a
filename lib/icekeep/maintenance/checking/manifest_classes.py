"""Faults of manifest lists, manifests and their entries: 201 to 299."""

from icekeep.maintenance.checking.faults import FaultClass

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
