"""Faults of what data and delete files hold, looked for with --deep: 401 to 499."""

from icekeep.maintenance.checking.faults import FaultClass

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
