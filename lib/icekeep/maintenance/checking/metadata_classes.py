"""Faults of the metadata file: 101 to 199."""

from icekeep.maintenance.checking.faults import FaultClass

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
