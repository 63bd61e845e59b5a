"""The commands beside the jobs: the settings of each, and the function that does it.

Only `doctor`, and a large `report`, `restore`, `why` or copy, may start Spark. To add a command is to add an entry here and a
function that takes what the command is about (`CommandScope`), and the settings as keywords; it returns the table after its
commit, or a value to show where it changes nothing.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from icekeep.maintenance.delete.settings import TRUST_MANIFEST_LIST
from icekeep.runs import STATUSES
from icekeep.settings import CATALOG_TYPES, CONFIG_PATH, Setting, SettingKind


class CommandScope(Enum):
    """What a command is about, and so what its function takes first.

    A table; the catalog and the name that a table is to have; a function that gives the configured catalogs, the name of one
    or `None`, and a source of a Spark session; the configuration, its catalogs, what opens one of them, and the name of one or
    `None`; the configuration, all catalogs and the environment; the command and its context, of one that runs jobs on many
    tables, or one that carries out the plan of a file; or nothing. A command about catalogs, a fleet or a plan may start Spark,
    and so has a script in `jobs/` too.
    """

    NOTHING = "nothing"
    TABLE = "table"
    NEW_TABLE = "new table"
    CATALOGS = "catalogs"
    POLICIES = "policies"
    CONFIGURATION = "configuration"
    FLEET = "fleet"
    PLAN = "plan"


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stdout can have in the place of a table.

    Attributes:
        make: where the function is, as "module:function", that makes it of the result.
        arguments: what the command's own function is told beside, so that the result has what the text needs.
        check: where the function is, as "module:function", that raises `UsageError` before the work if it could not be made.
        needs: what must be installed for it, as help says.
    """

    make: str
    arguments: Mapping[str, Any] = {}
    check: str | None = None
    needs: str = ""


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A command beside the jobs.

    Attributes:
        run: where its function is, as "module:function".
        one_of: settings of which exactly one must be given.
        changes: whether all that it does is one commit; then it has `--dry-run`, and its function returns the table after it.
            The others return what is shown; the status is that of what they return, if it has one.
        also_changes: whether a command that is not one commit changes tables all the same, and so is written down; where it is
            told to list (`lists`) it does not.
        takes_listener: whether its function takes a `listener`.
        scope: what it is about.
        takes_spark: whether the function of a command about a table takes what starts a session, `spark`, for where there is much
            to do.
        opens_catalogs: whether the function of a command about a table takes what opens another configured catalog by its name,
            `open_catalog`.
        for_people: where the function is, as "module:function", that makes of the result what is printed for people; `None`: the
            result itself. Machines get the result in any case.
        returns: where the function is, as "module:function", that returns the result, where `run` returns the whole outcome.
        texts: what `--output` can be beside `table` and `json`.
        examples: command lines that help shows, without the name of the command; the exit statuses stand below them.
    """

    summary: str
    run: str
    settings: tuple[Setting, ...] = ()
    one_of: tuple[Setting, ...] = ()
    changes: bool = True
    also_changes: bool = False
    takes_listener: bool = False
    scope: CommandScope = CommandScope.TABLE
    takes_spark: bool = False
    opens_catalogs: bool = False
    for_people: str | None = None
    returns: str | None = None
    texts: Mapping[str, OutputText] = {}
    examples: tuple[str, ...] = ()

    @property
    def changes_tables(self) -> bool:
        """Whether it may change tables, so that its runs are written down and reported, to Prometheus for example."""
        return self.changes or self.also_changes

    @property
    def may_start_spark(self) -> bool:
        return self.takes_spark or self.scope in (CommandScope.CATALOGS, CommandScope.FLEET)


def _name(what: str, keyword: str = "") -> Setting:
    return Setting("name", SettingKind.NAME, what, keyword=keyword, is_positional=True, is_required=True)


_BRANCH, _TAG = _name("the branch"), _name("the tag")
_AT = Setting("snapshot_id", SettingKind.NUMBER, "its snapshot (default: the current one)")
_MOVE_TO = Setting("snapshot_id", SettingKind.NUMBER, "any snapshot of the table", is_required=True)
_REF_AGE = Setting(
    "max_ref_age",
    SettingKind.AGE,
    "expiration drops the reference itself when its snapshot is older, e.g. 30d",
    minimum=1,
)
_BRANCH_LIMITS = (
    _REF_AGE,
    Setting(
        "max_snapshot_age",
        SettingKind.AGE,
        "expiration takes snapshots of the branch that are older, e.g. 7d",
        minimum=1,
    ),
    Setting(
        "min_snapshots_to_keep",
        SettingKind.NUMBER,
        "expiration leaves the branch this many snapshots at least",
        minimum=1,
    ),
)


def _if_it_exists(kind: str) -> tuple[Setting, Setting]:
    """What to do with a branch or tag that has the name already."""
    return (
        Setting("if_not_exists", SettingKind.SWITCH, f"if the {kind} exists, leave it as it is"),
        Setting("or_replace", SettingKind.SWITCH, f"if the {kind} exists, move it; limits that are not given stay"),
    )


_TABLES_MATCHING = Setting(
    "match",
    SettingKind.TEXT,
    "tables of a pattern: * within a part of the name, ** over parts, e.g. 'db.*' or 'CATALOG.db.*' (default: all)",
    shown="PATTERN",
)
_DRY_COPY = Setting("dry_run", SettingKind.SWITCH, "show files and bytes by kind, and write nothing")
_IF_EXISTS = Setting("if_exists", SettingKind.SWITCH, "if it does not exist, do nothing")

COMMANDS: Mapping[str, CommandSpec] = {
    "ref list": CommandSpec(
        summary="show every branch and tag, with its snapshot and limits",
        run="icekeep.operations.commands.references:list_refs",
        changes=False,
    ),
    "ref create-branch": CommandSpec(
        summary="create a branch",
        run="icekeep.tables.refs:create_branch",
        settings=(_BRANCH, _AT, *_BRANCH_LIMITS, *_if_it_exists("branch")),
    ),
    "ref create-tag": CommandSpec(
        summary="create a tag; expiration keeps its snapshot",
        run="icekeep.tables.refs:create_tag",
        settings=(_TAG, _AT, _REF_AGE, *_if_it_exists("tag")),
    ),
    "ref replace-branch": CommandSpec(
        summary="move a branch to any snapshot, or to where another branch or a tag is",
        run="icekeep.tables.refs:replace_branch",
        settings=(_name("the branch; made if it is not there and --to is given"),),
        one_of=(
            Setting("snapshot_id", SettingKind.NUMBER, "any snapshot of the table"),
            Setting("to", SettingKind.NAME, "the branch or tag to whose snapshot it goes"),
        ),
    ),
    "ref replace-tag": CommandSpec(
        summary="move a tag to another snapshot", run="icekeep.tables.refs:replace_tag", settings=(_TAG, _MOVE_TO)
    ),
    "ref fast-forward": CommandSpec(
        summary="move a branch on to where another branch or a tag is (Iceberg's fast_forward)",
        run="icekeep.tables.refs:fast_forward",
        settings=(
            _name("the branch; made if it is not there", keyword="branch"),
            Setting("to", SettingKind.NAME, "a branch or tag that the branch leads to", is_required=True),
        ),
    ),
    "ref rename-branch": CommandSpec(
        summary="give a branch another name",
        run="icekeep.tables.refs:rename_branch",
        settings=(_BRANCH, Setting("to", SettingKind.NAME, "its new name", keyword="new_name", is_required=True)),
    ),
    "ref drop-branch": CommandSpec(
        summary="drop a branch; its snapshots stay until they expire",
        run="icekeep.tables.refs:drop_branch",
        settings=(_BRANCH, _IF_EXISTS),
    ),
    "ref drop-tag": CommandSpec(
        summary="drop a tag, or all of a pattern; their snapshots stay until they expire",
        run="icekeep.operations.commands.references:drop_tags",
        settings=(_IF_EXISTS,),
        one_of=(
            Setting("name", SettingKind.NAME, "the tag", is_positional=True),
            Setting("match", SettingKind.TEXT, "all tags of a pattern, e.g. 'restored-*'", shown="PATTERN"),
        ),
    ),
    "ref set-retention": CommandSpec(
        summary="set limits of a branch or tag; those that are not given stay",
        run="icekeep.tables.refs:set_ref_retention",
        settings=(_name("the branch or tag"), *_BRANCH_LIMITS),
    ),
    "ref publish": CommandSpec(
        summary="publish a staged snapshot on main (Iceberg's cherrypick_snapshot and publish_changes)",
        run="icekeep.operations.commands.references:publish",
        one_of=(
            Setting("snapshot_id", SettingKind.NUMBER, "the snapshot"),
            Setting("wap_id", SettingKind.TEXT, "the wap.id that it was staged with"),
        ),
    ),
    "rollback": CommandSpec(
        summary="make another snapshot the current one; nothing is deleted",
        run="icekeep.operations.commands.references:rollback",
        one_of=(
            Setting("snapshot_id", SettingKind.NUMBER, "back to this ancestor of the current snapshot"),
            Setting("timestamp", SettingKind.TIME, "back to the newest ancestor that is older than a time or an age"),
            Setting("set_current", SettingKind.NUMBER, "to any snapshot of the table, an ancestor or not"),
            Setting("set_current_ref", SettingKind.NAME, "to where a branch or tag is"),
        ),
    ),
    "drop-statistics": CommandSpec(
        summary="drop the statistics and partition statistics of a snapshot (Trino's drop_extended_stats)",
        run="icekeep.tables.verbs:drop_statistics",
        settings=(_AT,),
    ),
    "history": CommandSpec(
        summary="show what each commit did to files, bytes, deletes and metadata, and who made it",
        run="icekeep.maintenance.history:commit_history",
        settings=(
            Setting("ref", SettingKind.NAME, "the branch or tag whose commits are shown (default: main)"),
            Setting(
                "all",
                SettingKind.SWITCH,
                "show every snapshot of the table, and the branches and tags that have it",
                keyword="all_snapshots",
            ),
            Setting(
                "limit", SettingKind.NUMBER, "show at most this many commits, the newest (default: 100)", minimum=1
            ),
            Setting("since", SettingKind.TIME, "show only commits since a time, or an age ago, e.g. 7d"),
        ),
        changes=False,
        for_people="icekeep.operations.shown.results:history_shown",
    ),
    "restore": CommandSpec(
        summary="undo a run: bring back files from the trash, and expired snapshots under tags; or undo a repair",
        run="icekeep.operations.commands.references:restore",
        settings=(
            Setting(
                "run",
                SettingKind.NAME,
                "the run, as --list names it, or the job and four or more characters behind that (default: the newest that can "
                "come back); newer ones first",
                shown="RUN",
            ),
            Setting(
                "list",
                SettingKind.SWITCH,
                "show the runs that can be brought back, and change nothing",
                keyword="lists",
            ),
            Setting(
                "keep_for",
                SettingKind.AGE,
                "how long the tags keep the snapshots, e.g. 7d (default: until the tags are dropped)",
                minimum=1,
            ),
            Setting(
                "dry_run", SettingKind.SWITCH, "look at every file and say what would come back, and change nothing"
            ),
        ),
        changes=False,
        also_changes=True,
        takes_listener=True,
        takes_spark=True,
    ),
    "why": CommandSpec(
        summary="explain a file: who added it, what refers to it, which deletes reach it, when it can be deleted",
        run="icekeep.maintenance.why.job:why",
        settings=(
            Setting(
                "path",
                SettingKind.TEXT,
                "any file, by its location or the end of it: data, deletes, manifests, metadata, statistics, orphans",
                shown="PATH",
                is_positional=True,
                is_required=True,
            ),
            Setting("where", SettingKind.FILTER, "show which step of a scan with this filter skips the file"),
            TRUST_MANIFEST_LIST,
        ),
        changes=False,
        takes_spark=True,
    ),
    "register": CommandSpec(
        summary="take in a table by its metadata file, e.g. one that was dropped (Iceberg's register_table)",
        run="icekeep.operations.commands.references:register",
        settings=(
            Setting(
                "metadata_location",
                SettingKind.TEXT,
                "its metadata file, as `drop` prints it; the name must be free",
                shown="LOCATION",
                is_required=True,
            ),
        ),
        changes=False,
        also_changes=True,
        takes_listener=True,
        scope=CommandScope.NEW_TABLE,
    ),
    "unregister": CommandSpec(
        summary="take a table out of its catalog, leave all files, and print what register takes (Trino's unregister_table)",
        run="icekeep.operations.commands.references:unregister",
        settings=(
            Setting(
                "metadata_location",
                SettingKind.TEXT,
                "its metadata file, as --dry-run showed it: refused if it is another one now (default: not asked)",
                shown="LOCATION",
            ),
            Setting("dry_run", SettingKind.SWITCH, "show the metadata file, and change nothing"),
        ),
        changes=False,
        also_changes=True,
        examples=("--table db.events --dry-run", "--table db.events --metadata-location LOCATION"),
    ),
    "rewrite_table_path": CommandSpec(
        summary="stage a table's metadata for another prefix, and list the files to copy (Iceberg's rewrite_table_path)",
        run="icekeep.operations.commands.copying:rewrite_path",
        settings=(
            Setting(
                "source_prefix",
                SettingKind.TEXT,
                "what all paths of the table begin with (default: its location)",
                shown="LOCATION",
            ),
            Setting(
                "target_prefix",
                SettingKind.TEXT,
                "what they begin with once the files are copied",
                shown="LOCATION",
                is_required=True,
            ),
            Setting(
                "start_version",
                SettingKind.TEXT,
                "the metadata file that was copied before, by name or location: only what came after it is staged and listed",
                shown="FILE",
            ),
            Setting(
                "end_version",
                SettingKind.TEXT,
                "the last metadata file to rewrite, by name or location (default: the current one)",
                shown="FILE",
            ),
            Setting(
                "staging_location",
                SettingKind.TEXT,
                "a directory for what is written (default: a new one below the table's metadata)",
                shown="LOCATION",
            ),
            Setting("no_file_list", SettingKind.SWITCH, "write no list of the files to copy"),
            _DRY_COPY,
        ),
        changes=False,
        also_changes=True,
        takes_listener=True,
        takes_spark=True,
        examples=("--table lake.db.events --target-prefix s3://other/db/events --dry-run",),
    ),
    "copy_table": CommandSpec(
        summary="copy a table to another prefix, store or catalog, or update a copy with what is new, and register it",
        run="icekeep.operations.commands.copying:copy",
        settings=(
            Setting("to", SettingKind.NAME, "the name of the copy", shown="NS.NAME", is_required=True),
            Setting("to_catalog", SettingKind.NAME, "the catalog that takes the copy (default: that of the table)"),
            Setting(
                "to_location",
                SettingKind.TEXT,
                "the prefix of the copy's files (default: where that catalog puts a table of this name)",
                shown="LOCATION",
            ),
            Setting(
                "source_prefix",
                SettingKind.TEXT,
                "what all paths of the table begin with (default: its location)",
                shown="LOCATION",
            ),
            Setting("increment", SettingKind.SWITCH, "update a copy that was made before with what is new since"),
            Setting("verify", SettingKind.SWITCH, "read each copied file once more, and compare checksums"),
            _DRY_COPY,
        ),
        changes=False,
        also_changes=True,
        takes_listener=True,
        takes_spark=True,
        opens_catalogs=True,
        examples=("--table lake.db.events --to backup.events --to-catalog other --dry-run",),
    ),
    "apply": CommandSpec(
        summary="carry out exactly the plan that --plan-out of a job wrote, or refuse and say what moved",
        run="icekeep.operations.commands.applying:apply_command",
        settings=(
            Setting(
                "file", SettingKind.TEXT, "the file of the plan", shown="FILE", is_positional=True, is_required=True
            ),
            Setting(
                "dry_run", SettingKind.SWITCH, "hold the plan against the table with all checks, and change nothing"
            ),
        ),
        changes=False,
        also_changes=True,
        scope=CommandScope.PLAN,
        for_people="icekeep.operations.commands.applying:applied_shown",
        returns="icekeep.operations.commands.applying:apply_plan",
        examples=("flights.plan.jsonl --dry-run", "flights.plan.jsonl --config icekeep.yaml"),
    ),
    "report": CommandSpec(
        summary="show how healthy tables are, the worst first, and what each job would do, cost and improve",
        run="icekeep.operations.commands.report:report_over",
        settings=(
            Setting("table", SettingKind.NAME, "one table; CATALOG.NS.NAME names both", shown="NS.NAME"),
            _TABLES_MATCHING,
            Setting(
                "page",
                SettingKind.TEXT,
                "also write the report as a page for a browser; needs icekeep[report]",
                shown="FILE",
            ),
            Setting("open", SettingKind.SWITCH, "ask a browser to show the page", keyword="in_browser"),
            Setting(
                "since",
                SettingKind.TEXT,
                "also tell what changed since an earlier report, which --output json or --result-file wrote",
                shown="FILE",
            ),
        ),
        changes=False,
        takes_listener=True,
        scope=CommandScope.CATALOGS,
        for_people="icekeep.reports.values:report_shown",
        texts={
            "prometheus": OutputText(make="icekeep.reports.prometheus:prometheus_text", needs="icekeep[telemetry]"),
            "html": OutputText(
                make="icekeep.reports.page.page:report_page",
                arguments={"histories": True},
                check="icekeep.reports.page.page:require_packages",
                needs="icekeep[report]",
            ),
        },
        examples=("", "--table local.demo.flights", "--catalog local --match 'demo.*' --page report.html --open"),
    ),
    "serve": CommandSpec(
        summary="show the report and the runs in a browser on this machine, up to date while jobs run; changes nothing",
        run="icekeep.operations.commands.serve:serve",
        settings=(
            Setting("table", SettingKind.NAME, "one table; CATALOG.NS.NAME names both", shown="NS.NAME"),
            _TABLES_MATCHING,
            Setting("port", SettingKind.NUMBER, "where it listens; 0 for any port that is free (default: 8642)"),
            Setting(
                "host",
                SettingKind.TEXT,
                "an address of this machine alone: 127.0.0.1, ::1 or localhost (default: 127.0.0.1)",
                shown="HOST",
            ),
            Setting(
                "refresh",
                SettingKind.AGE,
                "read a table again after this time even if its metadata has not moved, e.g. 60s (default: 10m)",
                minimum=1_000,
                keyword="keep_ms",
            ),
            Setting("open", SettingKind.SWITCH, "ask a browser to show it", keyword="in_browser"),
        ),
        changes=False,
        takes_listener=True,
        scope=CommandScope.POLICIES,
        examples=("", "--match 'local.demo.*' --open", "--port 0 --refresh 60s"),
    ),
    "tables": CommandSpec(
        summary="list the tables of catalogs, with what their metadata files say: files, bytes, snapshots, the last change",
        run="icekeep.operations.commands.tables:tables",
        settings=(_TABLES_MATCHING,),
        changes=False,
        scope=CommandScope.POLICIES,
        examples=("", "--catalog local", "--match 'local.demo.*' --output json"),
    ),
    "runs": CommandSpec(
        summary="show what became of runs of jobs and commands, the newest first",
        run="icekeep.operations.commands.runs:runs",
        settings=(
            Setting("table", SettingKind.NAME, "runs on one table; CATALOG.NS.NAME names both", shown="NS.NAME"),
            Setting("job", SettingKind.TEXT, "runs of a job, e.g. compact", shown="JOB"),
            Setting(
                "status",
                SettingKind.TEXT,
                f"runs of a status: {', '.join(STATUSES)}, which those are that were killed",
                shown="STATUS",
            ),
            Setting("since", SettingKind.TIME, "runs that began at a time or later, or since an age ago, e.g. 7d"),
            Setting("last", SettingKind.NUMBER, "at most this many (default: 20)", minimum=1),
            Setting(
                "run",
                SettingKind.TEXT,
                "one run, all that is known of it, by its id or the beginning of that",
                shown="RUN",
            ),
        ),
        changes=False,
        scope=CommandScope.POLICIES,
        for_people="icekeep.operations.commands.runs:runs_shown",
        examples=("--table local.demo.flights --job compact", "--status failed --since 7d", "--run compact-1b4e28ba"),
    ),
    "schema": CommandSpec(
        summary="print the JSON schema of what commands print with --output json, or of the configuration file",
        run="icekeep.operations.commands.document_schema:schema",
        settings=(
            Setting("job", SettingKind.TEXT, "of one job or command (default: of each)", shown="JOB"),
            Setting("configuration", SettingKind.SWITCH, "the schema of the configuration file, for editors"),
        ),
        changes=False,
        scope=CommandScope.NOTHING,
        texts={"table": OutputText(make="icekeep.operations.commands.document_schema:schema_text")},
    ),
    "help": CommandSpec(
        summary="say what to do after an error: the page on its kind, or on a situation; or show the help of a command",
        run="icekeep.operations.commands.help_pages:help_on",
        settings=(
            Setting(
                "topic",
                SettingKind.TEXT,
                "a kind of error, a situation, or a command (default: list them)",
                shown="TOPIC",
                is_positional=True,
            ),
        ),
        changes=False,
        scope=CommandScope.NOTHING,
        texts={"table": OutputText(make="icekeep.operations.commands.help_pages:help_text")},
        examples=("", "safety", "dropped-table", "compact"),
    ),
    "path": CommandSpec(
        summary="print where a file is that is installed with icekeep: a job's script, a DAG's file, a configuration",
        run="icekeep.operations.commands.help_pages:path",
        settings=(
            Setting(
                "name",
                SettingKind.TEXT,
                "the file, e.g. jobs/compact.py (default: list the names of all)",
                shown="NAME",
                is_positional=True,
            ),
        ),
        changes=False,
        scope=CommandScope.NOTHING,
        texts={"table": OutputText(make="icekeep.operations.commands.help_pages:path_text")},
        examples=("", "jobs/compact.py", "conf/log4j2.properties"),
    ),
    "completion": CommandSpec(
        summary="print a script by which bash, zsh or fish completes commands, flags and their values",
        run="icekeep.operations.commands.completion:completion",
        settings=(
            Setting(
                "shell",
                SettingKind.NAME,
                "the shell: bash, zsh or fish",
                shown="SHELL",
                is_positional=True,
                is_required=True,
                choices=("bash", "zsh", "fish"),
            ),
        ),
        changes=False,
        scope=CommandScope.NOTHING,
        texts={"table": OutputText(make="icekeep.operations.commands.completion:script_text")},
        examples=("bash > ~/.local/share/bash-completion/completions/icekeep",),
    ),
    "maintain": CommandSpec(
        summary="do what the policies want on all their tables, those first that bring the most for what they cost",
        run="icekeep.operations.commands.maintain:maintain_over",
        settings=(
            Setting(
                "policy", SettingKind.NAME, "only jobs of which this policy decides (default: all that have a schedule)"
            ),
            Setting(
                "match",
                SettingKind.TEXT,
                "only tables of a pattern: * within a part of the name, ** over parts, e.g. 'db.*' or 'CATALOG.db.*'",
                shown="PATTERN",
            ),
            Setting("tables", SettingKind.NAMES, "only these tables: NS.NAME,..., or CATALOG.NS.NAME"),
            Setting("workers", SettingKind.NUMBER, "how many tables are worked on at a time (default: 4)", minimum=1),
            Setting(
                "max_minutes",
                SettingKind.NUMBER,
                "no job is begun that this time would not hold; what runs goes on to its end",
                minimum=1,
            ),
            Setting(
                "max_bytes",
                SettingKind.NUMBER,
                "no job is begun that would read and write more, all together",
                minimum=1,
            ),
            Setting(
                "list", SettingKind.SWITCH, "only list what is due, for a scheduler; nothing is begun", keyword="lists"
            ),
        ),
        scope=CommandScope.FLEET,
        for_people="icekeep.operations.shown.results:maintain_shown",
        examples=("--dry-run", "--max-minutes 240", "--policy nightly --tables local.demo.flights"),
        returns="icekeep.operations.commands.maintain:result_of",
    ),
    "policy explain": CommandSpec(
        summary="show what policies say about one table: each job, each setting in force, and where it comes from",
        run="icekeep.operations.commands.policy:explain",
        settings=(
            Setting(
                "table", SettingKind.NAME, "the table; CATALOG.NS.NAME names both", shown="NS.NAME", is_required=True
            ),
        ),
        changes=False,
        scope=CommandScope.POLICIES,
        for_people="icekeep.operations.commands.policy:explanation_shown",
    ),
    "policy check": CommandSpec(
        summary="look for tables that no policy reaches or several do, and for names and patterns that fit no table",
        run="icekeep.operations.commands.policy:check_over",
        changes=False,
        scope=CommandScope.POLICIES,
    ),
    "demo": CommandSpec(
        summary="make a catalog of twelve tables in twelve states to play with, a report of it, and commands that help",
        run="icekeep.operations.commands.demo:demo",
        settings=(
            Setting(
                "directory",
                SettingKind.TEXT,
                "where it is made: a directory that is empty or not there",
                shown="DIR",
                is_required=True,
                is_positional=True,
            ),
            Setting("open", SettingKind.SWITCH, "ask a browser to show the report", keyword="in_browser"),
        ),
        changes=False,
        takes_listener=True,
        scope=CommandScope.NOTHING,
        for_people="icekeep.operations.commands.demo:demo_shown",
        examples=("playground", "playground-2 --open"),
    ),
    "init": CommandSpec(
        summary="write a first configuration, and look whether its catalog opens",
        run="icekeep.operations.commands.init:init",
        settings=(
            Setting(
                "name",
                SettingKind.TEXT,
                "the name that icekeep calls the catalog by (default: asked, or lake)",
                shown="NAME",
            ),
            Setting(
                "type",
                SettingKind.TEXT,
                f"its type: {', '.join(CATALOG_TYPES)} (default: asked)",
                keyword="kind",
                shown="TYPE",
            ),
            Setting("uri", SettingKind.TEXT, "the address of its database or server (default: asked)", shown="URI"),
            Setting("warehouse", SettingKind.TEXT, "where new tables go (default: asked)", shown="LOCATION"),
            Setting(
                "property",
                SettingKind.PAIRS,
                "another property of the catalog, e.g. s3.region=eu-central-1; a secret as '${VARIABLE}'; may be repeated",
                keyword="properties",
                shown="KEY=VALUE",
            ),
            Setting(
                "file", SettingKind.TEXT, f"the file, which must not be there (default: {CONFIG_PATH})", shown="FILE"
            ),
        ),
        changes=False,
        takes_listener=True,
        scope=CommandScope.NOTHING,
        examples=(
            "",
            "--type sql --uri sqlite:///catalog.db --warehouse ./warehouse",
            "--name prod --type rest --uri https://catalog.example.com/api --property 'token=${CATALOG_TOKEN}'",
        ),
    ),
    "doctor": CommandSpec(
        summary="look whether this machine, Spark's executors, catalogs and their stores are fit for the jobs",
        run="icekeep.operations.doctor.examination:examine",
        settings=(
            Setting(
                "namespace",
                SettingKind.NAME,
                "an existing namespace; a trial table is created in it, committed to and dropped (default: no commit is tried)",
            ),
            Setting(
                "location",
                SettingKind.TEXT,
                "a directory in which a trial file is put, read, listed and deleted (default: the catalog's warehouse)",
                shown="LOCATION",
            ),
            Setting(
                "executors",
                SettingKind.SWITCH,
                "start Spark, and ask each executor; by spark-submit they are asked in any case",
            ),
            Setting(
                "table",
                SettingKind.NAME,
                "with --upgrade-to, look at this table alone; CATALOG.NS.NAME names both",
                shown="NS.NAME",
            ),
            Setting(
                "upgrade_to",
                SettingKind.NUMBER,
                "say what stands in the way of this format version of --table, 2 or 3",
                minimum=1,
            ),
        ),
        changes=False,
        takes_listener=True,
        scope=CommandScope.CATALOGS,
    ),
    "config show": CommandSpec(
        summary="show each catalog's properties and where they come from",
        run="icekeep.operations.commands.config_show:show_config",
        changes=False,
        scope=CommandScope.CONFIGURATION,
    ),
}
"""Every command, by its words."""

GROUP_SUMMARIES: Mapping[str, str] = {
    "ref": "list, create, move and drop branches and tags; publish what is staged",
    "policy": "explain and check the policies of the configuration",
    "config": "look at the configuration",
}
"""What the first word of commands of two words is about."""

HELP_GROUPS: Mapping[str, tuple[str, ...]] = {
    "many tables": ("maintain", "tables", "report", "serve", "policy", "runs"),
    "one table": (
        "history",
        "why",
        "restore",
        "apply",
        "ref",
        "rollback",
        "drop-statistics",
        "unregister",
        "register",
        "copy_table",
        "rewrite_table_path",
    ),
    "set-up": ("init", "demo", "doctor", "config", "completion", "path", "schema", "help"),
}
"""First words of commands as help lists them, by what they are about."""
