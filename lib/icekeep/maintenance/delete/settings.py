"""Arguments that the jobs which delete files share, for help and validation: they load no catalog."""

from icekeep.settings import Setting, SettingKind

OPTIONS = Setting(
    "options",
    SettingKind.OPTIONS,
    "grace, keep-writer-progress, readers.max-lag, readers.spark-checkpoints, max-deletes-per-second, reclaim.roots; may be "
    "repeated",
)
MAX_CONCURRENT_DELETES = Setting(
    "max_concurrent_deletes", SettingKind.NUMBER, "how many calls that delete run at once, at most", minimum=1
)
STREAM_RESULTS = Setting(
    "stream_results",
    SettingKind.SWITCH,
    "for compatibility with Iceberg's, without effect: lists of files are always streamed",
)
TRASH = Setting(
    "trash",
    SettingKind.DAYS,
    "for how long deleted files can be restored, as 3 or 3d; 0 deletes at once (default: 3d on local disks and HDFS, else 0)",
)
APPROVE = Setting(
    "approve", SettingKind.TEXT, "the hash that --dry-run prints: do exactly that, or nothing", shown="HASH"
)
TRUST_MANIFEST_LIST = Setting(
    "trust_manifest_list",
    SettingKind.SWITCH,
    "go on where a snapshot's summary and its manifest list disagree on the number of files",
)
ACCEPT_UNREADABLE = Setting(
    "accept_unreadable",
    SettingKind.NAMES,
    "go on although these tables of the catalog cannot be loaded, since they lie elsewhere",
)
