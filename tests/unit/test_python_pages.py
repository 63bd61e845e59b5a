"""docs/python: every public name stands on exactly one page, the tree of errors is that of the code, and the examples run."""

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import icekeep
from icekeep.errors import IcekeepError
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.delete.options import ExpirationOptions, OrphanOptions
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.orphans.options import DEFAULT_AGE_MS, FLOOR_AGE_MS, PrefixMismatchMode
from icekeep.maintenance.rewrite.options import file_sizes
from icekeep.operations.arguments import parse_command
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.misspelt import PROCEDURES as COMMANDS_OF_PROCEDURES
from icekeep.settings import SettingKind
from icekeep.spec.types import DAY_MS, HOUR_MS
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each
from kit.shell import ROOT

DOCS = ROOT / "docs"
PAGES = {
    name: (DOCS / "python" / f"{name}.md").read_text() for name in ("index", "functions", "values", "errors", "events")
}
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for name, text in PAGES.items()}
OTHER_BLOCKS = {
    str(path.relative_to(DOCS)): re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    for path in (DOCS / "deploy" / "spark.md", DOCS / "deploy" / "databricks.md", DOCS / "deploy" / "glue.md")
}
CONFIGURATION = 'catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: ./warehouse}}\n'
POLICIES = (
    'policies: [{name: nightly, schedule: "@daily", match: local.**, jobs: {expire_snapshots: {older_than: 7d}}}]\n'
)
NEED_SPARK = {"build_session"}
"""What a block calls that starts Spark: such blocks are only looked at."""


def test_every_public_name_stands_on_exactly_one_page():
    told = [name for text in PAGES.values() for name in re.findall(r"^::: icekeep\.(\w+)$", text, re.MULTILINE)]
    assert sorted(told) == sorted(name for name in icekeep.__all__ if name != "__version__")


@pytest.mark.parametrize(
    ("page", "belongs"),
    [
        ("functions", lambda one: inspect.isfunction(one)),
        ("errors", lambda one: inspect.isclass(one) and issubclass(one, IcekeepError)),
        ("events", lambda one: inspect.isclass(one) and one.__module__ == "icekeep.events"),
    ],
)
def test_a_name_stands_on_the_page_of_its_kind(page, belongs):
    told = re.findall(r"^::: icekeep\.(\w+)$", PAGES[page], re.MULTILINE)
    assert sorted(told) == sorted(name for name in icekeep.__all__ if belongs(getattr(icekeep, name)))


def classes(cls=IcekeepError, depth=0):
    yield cls, depth
    for below in cls.__subclasses__():
        if below.__module__ == "icekeep.errors":
            yield from classes(below, depth + 1)


def test_the_tree_of_errors_is_that_of_the_code():
    rows = re.findall(r"^([ |`-]*)(\w+) +(\d+)   ([a-z-]+)", PAGES["errors"], re.MULTILINE)
    told = [
        (name, len(before) // 3 if len(before) < 4 else 2, int(status), kind) for before, name, status, kind in rows
    ]
    assert told == [(cls.__name__, depth, cls.exit_status, cls.kind) for cls, depth in classes()]


def test_exit_statuses_of_errors_are_explained():
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGES["errors"], re.MULTILINE)}
    assert {cls.exit_status for cls, _ in classes()} <= told


def calls(block):
    """What a block calls of ours by name, with the keywords."""
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "icekeep":
            assert {alias.name for alias in node.names} <= {*icekeep.__all__}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in icekeep.__all__:
            yield node.func.id, len(node.args), [keyword.arg for keyword in node.keywords if keyword.arg]


@for_each("page", [*BLOCKS, *OTHER_BLOCKS])
def test_calls_have_arguments_that_there_are(page):
    found = [call for block in {**BLOCKS, **OTHER_BLOCKS}[page] for call in calls(block)]
    assert found
    for name, arguments_count, keywords in found:
        signature = inspect.signature(getattr(icekeep, name))
        known = {*signature.parameters} | versions(signature)
        assert {*keywords} <= known, name
        positional = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert arguments_count <= len(positional), name


def versions(signature: inspect.Signature) -> set[str]:
    """Names behind `**version`."""
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and parameter.name == "version":
            return {"snapshot_id", "ref", "as_of", "start_snapshot_id", "end_snapshot_id"}
    return set()


@pytest.fixture
def with_flights(tmp_path, monkeypatch):
    """A directory with the configuration and a table, and nothing of Spark's."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text(CONFIGURATION + POLICIES)
    monkeypatch.chdir(tmp_path)
    catalog = icekeep.load_catalog("local")
    catalog.create_namespace(("demo",))
    rows = pa.table({"time_hour": pa.array([1_380_000_000_000_000], pa.timestamp("us", "UTC")), "carrier": ["UA"]})
    table = create_table(catalog, "demo.flights", rows.schema)
    for _ in range(2):
        table = append(table, rows)


@pytest.mark.parametrize("page", [*BLOCKS])
def test_the_examples_of_a_page_run_one_after_the_other(page, with_flights, capsys):
    names: dict[str, Any] = {"print": print}
    ran = 0
    for block in BLOCKS[page]:
        if not any(word in block for word in NEED_SPARK):
            exec(compile(block, f"{page}.md", "exec"), names)
            ran += 1
    assert ran


PAGE = (Path(__file__).parents[2] / "docs" / "from-iceberg.md").read_text()
NOW_MS = 1_790_000_000_000

# Iceberg 1.12, `SparkProcedures` and the parameters of each procedure.
PROCEDURES = {
    "rewrite_data_files": ("table", "strategy", "sort_order", "options", "where", "branch"),
    "rewrite_position_delete_files": ("table", "options", "where"),
    "rewrite_manifests": ("table", "use_caching", "spec_id", "sort_by"),
    "expire_snapshots": (
        "table",
        "older_than",
        "retain_last",
        "max_concurrent_deletes",
        "stream_results",
        "snapshot_ids",
        "clean_expired_metadata",
    ),
    "remove_orphan_files": (
        "table",
        "older_than",
        "location",
        "dry_run",
        "max_concurrent_deletes",
        "file_list_view",
        "equal_schemes",
        "equal_authorities",
        "prefix_mismatch_mode",
        "prefix_listing",
        "stream_results",
    ),
    "rollback_to_snapshot": ("table", "snapshot_id"),
    "rollback_to_timestamp": ("table", "timestamp"),
    "set_current_snapshot": ("table", "snapshot_id", "ref"),
    "cherrypick_snapshot": ("table", "snapshot_id"),
    "publish_changes": ("table", "wap_id"),
    "fast_forward": ("table", "branch", "to"),
    "ancestors_of": ("table", "snapshot_id"),
    "register_table": ("table", "metadata_file"),
    "snapshot": (),
    "migrate": (),
    "add_files": (),
    "rewrite_table_path": (
        "table",
        "source_prefix",
        "target_prefix",
        "start_version",
        "end_version",
        "staging_location",
        "create_file_list",
    ),
    "compute_table_stats": ("table", "snapshot_id", "columns"),
    "compute_partition_stats": ("table", "snapshot_id"),
    "create_changelog_view": (),
}
WITH_A_SECTION = (
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "rewrite_manifests",
    "expire_snapshots",
    "remove_orphan_files",
)
WITHOUT_VALUE_IN_CODE = {
    # What stands there for `None`, which means that the table or another option decides.
    "target-file-size-bytes",
    "min-file-size-bytes",
    "max-file-size-bytes",
    "max-files-to-rewrite",
    "output-spec-id",
    "max-concurrent-file-group-rewrites",
    "partial-progress.max-failed-commits",
    "compression-factor",
    "shuffle-partitions-per-file",
    "var-length-contribution",
    "max-output-size",
}


def section(procedure):
    return re.search(rf"^## {procedure}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[1]


def table(text, heading):
    """The rows of the table whose first cell in the head is a text."""
    [found] = re.findall(rf"^\| {heading} \|.*?\n\|[-|]+\n((?:\|.*\n)*)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in found.splitlines()]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def job_of(procedure):
    return JOBS[str(COMMANDS_OF_PROCEDURES[procedure])]


def test_every_procedure_has_a_row():
    assert [names(cells[0])[0] for cells in table(PAGE, "Iceberg's procedure")] == [*PROCEDURES]


def test_a_procedure_in_the_place_of_a_command():
    told = {names(theirs)[0]: names(here) for theirs, here, *_ in table(PAGE, "Iceberg's procedure")}
    assert {procedure: [command] if command else [] for procedure, command in COMMANDS_OF_PROCEDURES.items()} == {
        procedure: commands[:1] for procedure, commands in told.items()
    }


@for_each("procedure", WITH_A_SECTION)
def test_every_argument_there_and_here_has_a_row(procedure):
    rows = table(section(procedure), "argument")
    theirs = [name for cells in rows for name in names(cells[0])]
    assert sorted(theirs) == sorted(PROCEDURES[procedure])
    ours = [name for cells in rows for name in names(cells[1])]
    flags = {setting.flag for setting in job_of(procedure).settings} | {"--table"}
    flags |= {"--dry-run"} if "dry_run" in theirs else set()
    assert sorted(ours) == sorted(flags)


@for_each("procedure", WITH_A_SECTION)
def test_an_argument_of_the_same_meaning_has_the_same_name(procedure):
    for cells in table(section(procedure), "argument"):
        for name in names(cells[0]):
            [flag] = names(cells[1])
            assert flag == ("--option" if name == "options" else f"--{name.replace('_', '-')}")


@pytest.mark.parametrize(
    ("procedure", "options"),
    [
        ("rewrite_data_files", RewriteDataFilesOptions),
        ("rewrite_position_delete_files", RewritePositionDeletesOptions),
    ],
)
def test_every_rewrite_option_has_row_with_its_default(procedure, options):
    defaults = dict(zip(options.__struct_encode_fields__, options.__struct_defaults__, strict=True))
    told = {}
    for name, iceberg, here, *_ in table(section(procedure), "option"):
        if name:
            told[names(name)[0]] = iceberg if here == "same" else here
        else:
            # Ours alone.
            told[names(here)[0]] = here.partition(": ")[2]
    assert {*told} == {*defaults}
    assert {name for name, default in defaults.items() if default is None} <= WITHOUT_VALUE_IN_CODE
    for name, default in defaults.items():
        if default is not None:
            assert told[name] == (str(default).lower() if isinstance(default, bool) else str(default)), name


def test_defaults_that_are_worked_out_are_as_they_are_told():
    sizes = file_sizes(RewriteDataFilesOptions(), 1000)
    told = {names(cells[0])[0]: cells[1] for cells in table(section("rewrite_data_files"), "option") if cells[0]}
    assert told["min-file-size-bytes"] == f"{sizes.min_bytes / 1000} of the target"
    assert told["max-file-size-bytes"] == f"{sizes.max_bytes / 1000} of the target"


@pytest.mark.parametrize(
    ("procedure", "options"),
    [
        ("rewrite_manifests", RewriteManifestsOptions),
        ("expire_snapshots", ExpirationOptions),
        ("remove_orphan_files", OrphanOptions),
    ],
)
def test_options_that_are_ours_alone_stand_with_their_defaults(procedure, options):
    [cell] = [cells[2] for cells in table(section(procedure), "argument") if names(cells[1]) == ["--option"]]
    told = dict(re.findall(r"`([^`]+)` \(([^;)]+)", cell))
    defaults = dict(zip(options.__struct_encode_fields__, options.__struct_defaults__, strict=True))
    assert {*told} == {*defaults}
    spelled = {None: "no limit", "": "none", False: "false"}
    for name, default in defaults.items():
        if name != "grace":
            assert told[name] == spelled.get(default, str(default))
    if "grace" in told:
        assert told["grace"] == "0"
        assert options().grace_ms(compares_metadata=True) == 0
        assert options().grace_ms(compares_metadata=False) == 24 * HOUR_MS


def test_what_is_said_of_orphans_is_so():
    text = " ".join(section("remove_orphan_files").split())
    assert "default there and here: 3 days. Less than 24 hours is refused" in text
    assert (DEFAULT_AGE_MS, FLOOR_AGE_MS) == (3 * DAY_MS, DAY_MS)
    assert "`DELETE` is refused" in text
    assert "DELETE" not in PrefixMismatchMode.__members__


CALLS = re.findall(r"CALL lake\.system\.([a-z_]+)\((.*?)\)[;`]", PAGE)


def test_calls_have_arguments_that_the_procedure_has():
    assert len(CALLS) > 15
    for procedure, arguments in CALLS:
        assert {*re.findall(r"(\w+) =>", arguments)} <= {*PROCEDURES[procedure]}


COMMANDS = [
    *re.findall(r"^(icekeep [a-z_]+ --.*)$", PAGE, re.MULTILINE),
    *re.findall(r"`(icekeep [^`]*--table [^`.]*\.[^`]*)`", PAGE),
]


@for_each("line", [line for line in COMMANDS if "..." not in line and "JOB" not in line])
def test_a_command_is_read(line):
    command = parse_command(shlex.split(line)[1:], None, NOW_MS)
    job = JOBS.get(command.name)
    for setting in () if job is None else job.settings:
        if setting.kind is SettingKind.OPTIONS and setting.argument in command.arguments:
            parse_options(resolve(job.options), command.arguments[setting.argument])
    assert len(COMMANDS) > 15
