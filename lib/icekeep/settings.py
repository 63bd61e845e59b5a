"""What jobs and commands are and can be told: values alone, by which each package describes its own.

A setting is an argument of Iceberg's procedure under its own name; its flag has dashes where the name has underscores. Flags of
the command line and keys of a policy are made from settings.
"""

from enum import Enum

import msgspec

CONFIG_PATH = "conf/icekeep.yaml"
"""The file of the current directory that is read if it is there and no other is named."""

CONFIG_VARIABLE = "ICEKEEP_CONFIG"
"""The environment variable that names a file where no flag does."""

CONFIG_PLACES = f"the file that {CONFIG_VARIABLE} names, {CONFIG_PATH} or ~/.config/icekeep/icekeep.yaml"
"""For people: where a configuration is looked for, in this order."""

CATALOG_TYPES = ("sql", "jdbc", "filesystem", "hadoop", "rest", "hive", "glue")
"""What `type` of a catalog can be, in the order in which messages list them; `catalog/open.py` has the class of each."""


class SettingKind(Enum):
    """What a setting's value is; the text is how a usage line shows it. A filter is over rows, or over manifests.

    A `NUMBER` of a setting whose name ends in `bytes` may also be a size, such as 10MB.
    """

    TEXT = "TEXT"
    NAME = "NAME"
    FILTER = "FILTER"
    MANIFEST_FILTER = "MANIFEST_FILTER"
    TIME = "TIME"
    AGE = "AGE"
    DAYS = "DAYS"
    NUMBER = "N"
    NUMBER_OR_ALL = "N|all"
    IDS = "ID,ID"
    NAMES = "NAME,NAME"
    LOCATIONS = "FILE,FILE"
    SWITCH = ""
    OPTIONS = "KEY=VALUE"
    PAIRS = "FROM=TO"


ALL = "all"
"""What a setting of the kind `NUMBER_OR_ALL` takes beside a number, in whatever case."""


def is_all(value: object) -> bool:
    """Whether a value of the kind `NUMBER_OR_ALL` is the word."""
    return isinstance(value, str) and value.strip().lower() == ALL


class Setting(msgspec.Struct, frozen=True):
    """One thing a job or a command can be told.

    Attributes:
        keyword: the function's argument where it is not the setting's name.
        shown: how a usage line shows the value, where the kind says too little.
        is_positional: stands without a flag.
        is_required: must be given.
        choices: the only texts that it can be; empty for any that its kind allows.
    """

    name: str
    kind: SettingKind
    help: str
    minimum: int = 0
    keyword: str = ""
    shown: str = ""
    is_positional: bool = False
    is_required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + ("option" if self.kind is SettingKind.OPTIONS else self.name.replace("_", "-"))

    @property
    def argument(self) -> str:
        """The function's keyword argument."""
        return self.keyword or self.name


class CatalogChange(Enum):
    """What a job asks of a catalog beside the table itself: to take a commit, or to forget the table."""

    COMMIT = "commit"
    DROP = "drop"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job on a table: its package says it in `JOB`, and the command line, policies and docs go by that.

    The code is named as "module:function", so that help and mistakes are answered without Spark.

    Attributes:
        name: of its command and its script; as Iceberg's procedure where there is one.
        summary: one line of help.
        settings: what it can be told, in the order in which help lists them.
        examples: command lines that help shows, without the name of the command.
        rank: where it stands among the jobs that a policy runs on a table, each of which makes garbage for a later one; `None`
            for a job that no policy may ask for.
        run: does the work.
        plan: makes the plan that `--dry-run` shows; `None` for a job that changes nothing.
        exact: hands out the real plan, all of it (`maintenance/plans.py`): `--plan-out` makes a file of it, which `apply`
            gives to `run` and `plan` as `saved`; `None` for a job that changes nothing.
        options: the class of the job's options; `None` if it has none.
        check: holds the arguments against the table's metadata, beside what all jobs have in common; `None` for nothing.
        unreadable: called in place of `run` where the table's metadata cannot be loaded, with the catalog, the table's identifier
            and the error, what starts a session as `spark`, and the `run`; `None` for a job that fails then.
        plan_unreadable: the same in place of `plan`.
        for_people: makes of the result what is printed for people; `None`: the result itself.
        asks: what the catalog has to do for it, which some do not take; `None` for a job that changes no metadata.
        takes_listener: whether all functions take a `listener`.
        has_estimate: whether its plan and result say what it was expected to take (`estimated`), which learns from earlier runs.
    """

    name: str
    summary: str
    settings: tuple[Setting, ...]
    run: str
    examples: tuple[str, ...] = ()
    rank: int | None = None
    plan: str | None = None
    exact: str | None = None
    options: str | None = None
    check: str | None = None
    unreadable: str | None = None
    plan_unreadable: str | None = None
    for_people: str | None = None
    asks: CatalogChange | None = None
    takes_listener: bool = True
    has_estimate: bool = False


WHERE = Setting("where", SettingKind.FILTER, "only files that may hold rows of a filter, e.g. \"day >= '2026-01-01'\"")

SNAPSHOT_PROPERTY = Setting(
    "snapshot_property",
    SettingKind.PAIRS,
    "a key of your own in the summaries of the new snapshots, e.g. ticket=OPS-7; may be repeated",
    keyword="snapshot_properties",
    shown="KEY=VALUE",
)

BRANCH = Setting("branch", SettingKind.NAME, "the branch to work on and to commit to (default: main)")
