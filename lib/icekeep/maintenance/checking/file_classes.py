"""Faults of the files that entries and metadata name: 301 to 399."""

from icekeep.maintenance.checking.faults import FaultClass

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
