"""docs/table-properties.md has all table properties that the code reads, and no other, with the defaults of the code."""

import ast
import re
from functools import cache
from pathlib import Path

from icekeep.catalog.resending import StatusChecks
from icekeep.commit.live_files import MergePolicy
from icekeep.commit.manifest_writer import manifest_compression, manifest_target_bytes
from icekeep.commit.retry import RetryPolicy
from icekeep.formats.deletes.rewrite import delete_granularity
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetColumns, ParquetOptions, write_options
from icekeep.maintenance.delete.reachable import is_gc_enabled
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.planning.scan.tasks import read_options
from icekeep.policies.table_properties import settings_of_properties
from icekeep.spec.properties import DEFAULT
from icekeep.spec.retention import MAX_REF_AGE_MS, MAX_SNAPSHOT_AGE_MS, MIN_SNAPSHOTS_TO_KEEP, default_limit
from kit.cases import for_each
from kit.catalogs import simple_metadata

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "table-properties.md").read_text()
LIB = ROOT / "lib" / "icekeep"
ROWS = {
    name: cells
    for line in re.findall(r"^\| (`.*) \|$", PAGE, re.MULTILINE)
    for cells in [[cell.strip() for cell in line.split(" | ")]]
    for name in re.findall(r"`([^`]+)`", cells[0])
}
FAMILY = re.compile(
    r"(?:write|read|commit|history|gc|schema|engine|encryption|compatibility|parquet|icekeep)\.[a-z0-9.-]*[a-z0-9.-]"
)
OF_SUMMARIES = {"icekeep.job", "icekeep.run-id", "icekeep.run", "icekeep.policy", "icekeep.plan", "icekeep.order"}
OF_SUMMARIES |= {"icekeep.commit-id", "icekeep.faults"}
ROOMS_WITH_OTHER_NAMES = ("airflow", "telemetry")
"""Their texts that begin so are names of modules and of attributes of spans."""

NO_PROPERTIES = {
    "icekeep.yaml",
    "icekeep.events",  # a logger
    "icekeep.operations.console.notebook",  # a module
    "icekeep.",
    "write.",
    "write.delete.",
    "write.parquet.",
}
"""Names of other things, and prefixes by which families are read."""


def texts(path):
    """Texts of a file; what is put together is there with its names filled in, where they are texts of that file."""
    code = path.read_text()
    if not FAMILY.search(code):
        return
    tree = ast.parse(code)
    known = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance((*node.body, None)[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                p.value if isinstance(p, ast.Constant) else known.get(getattr(p.value, "id", ""), "")
                for p in node.values
            ]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


@cache
def read_by_the_code():
    """Names and families of names."""
    found = set()
    for path in sorted(LIB.rglob("*.py")):
        if path.relative_to(LIB).parts[0] not in ROOMS_WITH_OTHER_NAMES:
            found |= {text for text in texts(path) if FAMILY.fullmatch(text)}
    return found - OF_SUMMARIES - NO_PROPERTIES


def is_told(name):
    """Whether the page has a property, or what begins with a family's name."""
    return any(told == name or (name[-1] in ".-" and told.startswith(name)) for told in ROWS)


def test_every_property_that_the_code_reads_is_on_the_page():
    read = read_by_the_code()
    assert len(read) > 60
    assert sorted(name for name in read if not is_told(name)) == []


def test_the_page_has_no_property_that_the_code_does_not_read():
    families = {"commit.retry.": RetryPolicy, "commit.status-check.": StatusChecks}
    read = read_by_the_code() | {
        f"{prefix}{name.replace('_', '-')}" for prefix, cls in families.items() for name in cls.__struct_fields__
    }
    read |= {"owner", "Description"}
    for name in ROWS:
        key = re.sub(r"(?:COLUMN|\*)$", "", name)
        if not key.startswith("icekeep."):
            assert key in read, name


def test_properties_of_icekeeps_own_are_those_that_policies_understand():
    filled = {
        "icekeep.enabled": "false",
        "icekeep.mode": "observe",
        "icekeep.JOB.enabled": "false",
        "icekeep.JOB.when.CONDITION": "10",
        "icekeep.JOB.SETTING": "sort",
        "icekeep.JOB.options.OPTION": "10",
    }
    assert {name for name in ROWS if name.startswith("icekeep.")} == {*filled}
    for name, value in filled.items():
        real = name.replace("JOB", "compact").replace("CONDITION", "small_files_over").replace("SETTING", "strategy")
        heard = settings_of_properties({real.replace("OPTION", "min-input-files"): value})
        assert len(heard.told) == 1
        assert not heard.problems


METADATA = simple_metadata("file:///t")
WRITE, PARQUET, ORC = write_options({}), ParquetOptions(), OrcOptions()
RETRY, CHECKS, READING = RetryPolicy.of(METADATA), StatusChecks.of(METADATA), read_options({})
MERGE = MergePolicy.of(METADATA)


@for_each(
    ("name", "default"),
    [
        *((f"commit.retry.{field.replace('_', '-')}", getattr(RETRY, field)) for field in RETRY.__struct_fields__),
        *(
            (f"commit.status-check.{field.replace('_', '-')}", getattr(CHECKS, field))
            for field in CHECKS.__struct_fields__
        ),
        ("commit.manifest.target-size-bytes", manifest_target_bytes(METADATA)),
        ("commit.manifest-merge.enabled", MERGE is not None),
        ("commit.manifest.min-count-to-merge", MERGE and MERGE.min_count),
        ("write.manifest.compression-codec", manifest_compression({})[0]),
        ("write.format.default", WRITE.file_format.lower()),
        ("write.target-file-size-bytes", WRITE.target_file_size_bytes),
        ("write.parquet.row-group-size-bytes", PARQUET.row_group_size_bytes),
        ("write.parquet.page-size-bytes", PARQUET.page_size_bytes),
        ("write.parquet.page-row-limit", PARQUET.page_rows),
        ("write.parquet.dict-size-bytes", PARQUET.dictionary_size_bytes),
        ("write.parquet.compression-codec", PARQUET.compression),
        ("write.parquet.bloom-filter-max-bytes", ParquetColumns().bloom_filter_max_bytes),
        ("parquet.enable.dictionary", ParquetColumns().default_dictionary),
        ("write.orc.stripe-size-bytes", ORC.stripe_size_bytes),
        ("write.orc.vectorized.batch-size", ORC.batch_rows),
        ("write.orc.compression-codec", ORC.compression),
        ("write.orc.compression-strategy", ORC.compression_strategy),
        ("write.orc.bloom.filter.fpp", ORC.bloom_filter_fpp),
        ("write.metadata.metrics.default", f"truncate({DEFAULT.length})"),
        ("write.delete.granularity", delete_granularity({})),
        ("write.delete.target-file-size-bytes", delete_file_sizes(RewritePositionDeletesOptions(), {}).target_bytes),
        *(
            (name, default_limit(METADATA, name))
            for name in (MAX_SNAPSHOT_AGE_MS, MIN_SNAPSHOTS_TO_KEEP, MAX_REF_AGE_MS)
        ),
        ("gc.enabled", is_gc_enabled(METADATA)),
        ("read.split.target-size", READING.split_target_bytes),
        ("read.split.planning-lookback", READING.planning_lookback),
        ("read.split.open-file-cost", READING.open_file_cost_bytes),
        ("read.split.adaptive-size.enabled", READING.is_adaptive),
    ],
)
def test_a_default_is_that_of_the_code(name, default):
    assert ROWS[name][1] == (str(default).lower() if isinstance(default, bool) else str(default))


def test_the_defaults_that_are_said_in_words_are_those_of_the_code():
    assert ROWS["write.parquet.compression-level"][1].startswith(
        f"{PARQUET.compression_level} for {PARQUET.compression}"
    )
    assert write_options({"write.format.default": "avro"}).encoding == AvroOptions(codec="deflate", level=None)
    assert ROWS["write.avro.compression-codec"][1] == "gzip"
