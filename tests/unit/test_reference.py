"""Pages of docs/ say what the code says of flags, options and results: what `make reference` makes is what is there."""

import ast
import importlib
import re
import shlex
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import yaml

from icekeep.catalog.base import StoredPolicy
from icekeep.catalog.clients.rest_session import ANSWER_TIMEOUT_DEFAULT_MS, CONNECT_TIMEOUT_DEFAULT_MS
from icekeep.catalog.open import open_catalog
from icekeep.catalog.resending import StatusChecks
from icekeep.commit.live_files import MergePolicy
from icekeep.commit.manifest_writer import manifest_compression, manifest_target_bytes
from icekeep.commit.retry import RetryPolicy
from icekeep.errors import ExpressionError, UnsupportedError
from icekeep.formats.deletes.rewrite import delete_granularity
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetColumns, ParquetOptions, write_options
from icekeep.health.files import Sickness, score_of
from icekeep.health.prices import Prices
from icekeep.maintenance.delete.reachable import is_gc_enabled
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.operations.arguments import parse_command
from icekeep.operations.command_specs import COMMANDS, HELP_GROUPS
from icekeep.operations.configuration import shape
from icekeep.operations.configuration.file import KEEP_MS, parse_config
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.operations.loading import open_settings
from icekeep.planning.scan.tasks import read_options
from icekeep.policies.polaris import settings_of_polaris
from icekeep.policies.resolution import rules_for
from icekeep.policies.table_properties import settings_of_properties
from icekeep.policies.values import parse_glob
from icekeep.policies.windows import CONDITIONS
from icekeep.settings import CATALOG_TYPES
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.properties import DEFAULT
from icekeep.spec.retention import MAX_REF_AGE_MS, MAX_SNAPSHOT_AGE_MS, MIN_SNAPSHOTS_TO_KEEP, default_limit
from icekeep.spec.times import format_span
from icekeep.storage.open import open_storage
from icekeep.storage.ranges import FIRST_ANSWER_TIMEOUT, first_answer_ms
from kit.cases import for_each
from kit.catalogs import simple_metadata
from kit.prose import wrapped
from kit.shell import ROOT

DOCS = ROOT / "docs"
NAMES = [*JOBS, *COMMANDS]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(ROOT / ".ci" / "docs")
    return {
        name: importlib.import_module(name) for name in ("reference", "result_fields", "markdown_tables", "list_items")
    }


@pytest.mark.slow
def test_what_is_made_is_what_the_pages_have(tools: dict[str, ModuleType]) -> None:
    """If not: `make reference`."""
    reference = tools["reference"]
    pages = reference.pages()
    assert len(pages) >= 24
    behind = [str(path) for path in pages if reference.written(path.read_text()) != path.read_text()]
    assert behind == []


def test_editors_know_the_operators_of_airflow_as_they_are(tools: dict[str, ModuleType]) -> None:
    """If not: `make reference`."""
    reference = tools["reference"]
    assert reference.STUB.read_text() == reference.stub()


@pytest.mark.slow
def test_each_command_has_flags_options_and_result_on_page(tools: dict[str, ModuleType]) -> None:
    """The actions of `ref` have some of these in common."""
    found = [block for path in tools["reference"].pages() for block in tools["reference"].blocks_of(path.read_text())]
    assert sorted(name for what, name in found if what in ("flags", "own")) == sorted(NAMES)
    assert sorted(name for what, name in found if what == "options") == sorted(
        name for name, job in JOBS.items() if job.options
    )
    results = {name for what, name in found if what == "result"}
    assert {name for name in NAMES if not name.startswith("ref ")} < results
    fields = tools["result_fields"]
    assert {*fields.all_results(NAMES)} == {*fields.all_results(results)}


def test_each_has_a_page_of_its_name() -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert {f"jobs/{name}" for name in JOBS} < pages
    assert {f"commands/{name}" for names in HELP_GROUPS.values() for name in names} < pages


@pytest.mark.slow
def test_result_fields_and_meanings_match(tools: dict[str, ModuleType]) -> None:
    fields = tools["result_fields"]
    classes = fields.all_results(NAMES)
    untold = [
        (cls.__name__, name) for cls in classes for name in cls.__struct_fields__ if not fields.meaning_of(cls, name)
    ]
    assert len(classes) > 100
    assert untold == []
    silent = {
        (cls.__name__, name)
        for cls in classes
        for name in cls.__struct_fields__
        if not tools["markdown_tables"].meanings_of(cls).get(name)
    }
    used = {name for _, name in silent} | {f"{cls}.{name}" for cls, name in silent}
    assert {*fields.meanings()} - used == set()


def test_pages_with_blocks_are_wrapped_at_the_width_of_the_code(tools: dict[str, ModuleType]) -> None:
    """If not: `python -m kit.prose ../FILE` in `tests/`."""
    pages = [*tools["reference"].pages(), DOCS / "plans.md"]
    assert [str(path) for path in pages if wrapped(path.read_text()) != path.read_text()] == []


def test_a_block_is_made_anew_and_all_else_stays(tools: dict[str, ModuleType]) -> None:
    text = "# A\n\n<!-- begin: options compact -->\nYESTERDAY\n<!-- end -->\n\nB `<!-- end -->`\n"
    made = tools["reference"].written(text)
    assert made.startswith("# A\n\n<!-- begin: options compact -->\n\n| option |")
    assert made.endswith("|\n\n<!-- end -->\n\nB `<!-- end -->`\n")
    assert "YESTERDAY" not in made
    assert "| `stitch` | `auto` | icekeep's |" in made
    assert "| `min-input-files` | `5` | Iceberg's |" in made
    assert tools["reference"].written(made) == made


def test_a_docstring_tells_of_fields_over_several_lines(tools: dict[str, ModuleType]) -> None:
    above = type("Above", (), {"__doc__": "A.\n\n    Attributes:\n        a, b: one\n            and more.\n    "})
    below = type(
        "Below", (above,), {"__doc__": "B.\n\n    Attributes:\n        b: another.\n\n    More: no field.\n    "}
    )
    said: dict[str, Any] = tools["markdown_tables"].meanings_of(below)
    assert said == {"a": "one and more.", "b": "another."}


def test_list_item_content_is_indented_by_four_spaces(tools: dict[str, ModuleType]) -> None:
    text = "* a\n  b\n\n  c\n\n      code\n  - d\n* e\n\n1. f\n\n   | g |\n\nh\n  i\n```\n* j\n  k\n```\n"
    made = "* a\n    b\n\n    c\n\n        code\n    - d\n\n* e\n\n1. f\n\n    | g |\n\nh\n  i\n```\n* j\n  k\n```\n"
    assert tools["list_items"].set_in(text) == made


LIB = ROOT / "lib" / "icekeep"
KINDS = sorted(path.stem for path in (DOCS / "catalogs").glob("*.md") if path.stem != "index")
PAGES = {f"catalogs/{kind}": (DOCS / "catalogs" / f"{kind}.md").read_text() for kind in ("index", *KINDS)}
PAGES["stores"] = (DOCS / "stores.md").read_text()
SNIPPETS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
]
PREFIX = re.compile(r"(?:s3|gcs|adls|client|glue|hive|hdfs|rest|ssl|lock-check|jdbc)[.-][a-z0-9]")
NO_PROPERTIES = {"hive.catalog", "rest-catalog"}
"""The first only tells catalogs apart that somebody runs behind one metastore."""


class Environment(dict[str, str]):
    """Every variable is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "secret"


@for_each("snippet", SNIPPETS)
def test_a_snippet_is_a_configuration_and_its_catalogs_open(snippet):
    catalogs = parse_config(snippet).catalogs
    assert catalogs
    for settings in catalogs.values():
        assert open_settings(settings, environ=Environment()).name == settings.name


@for_each("kind", KINDS)
def test_a_page_shows_a_catalog_of_its_own_kind(kind):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGES[f"catalogs/{kind}"], re.MULTILINE | re.DOTALL)
    kinds = {one["type"] for block in blocks for one in yaml.safe_load(block)["catalogs"].values()}
    assert kind in kinds


def told(text):
    """The properties in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def said():
    """All texts in the code of catalogs and stores; what is put together from parts is there by its last one."""
    texts = set()
    for room in ("catalog", "storage"):
        for path in sorted((LIB / room).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text()))
            texts |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts


SAID = said()


@for_each("page", [*PAGES])
def test_a_property_that_a_page_tells_is_one_that_the_code_reads(page):
    for name in told(PAGES[page]):
        if PREFIX.match(name):
            last = name.partition(".")[2]
            assert {name, last} & SAID or name.removesuffix(".HOST") in SAID | {"adls.sas-token"}, name


def test_every_property_that_the_code_reads_is_told():
    everything = "".join(PAGES.values())
    names = {text for text in SAID if PREFIX.match(text) and re.fullmatch(r"[a-z0-9.-]+", text)}
    names |= {text for text in SAID if re.fullmatch(r"(?:credential|oauth2-server-uri|scope|ugi|token|prefix)", text)}
    assert len(names) > 60
    missing = [name for name in sorted(names - NO_PROPERTIES) if f"`{name}" not in everything]
    assert missing == []


def test_defaults_of_waits_are_those_that_are_told():
    rest, hive = PAGES["catalogs/rest"], PAGES["catalogs/hive"]
    assert (
        f"`rest.client.connection-timeout-ms` | how long a connection may take | {CONNECT_TIMEOUT_DEFAULT_MS} |" in rest
    )
    assert f"`rest.client.socket-timeout-ms` | how long an answer may take | {ANSWER_TIMEOUT_DEFAULT_MS} |" in rest
    assert "`hive.client.socket-timeout-ms` | how long an answer may take | 300000 |" in hive
    pages = [page for page in (PAGES["catalogs/index"], PAGES["stores"]) if f"`{FIRST_ANSWER_TIMEOUT}` |" in page]
    assert [str(first_answer_ms("", {})) in page for page in pages] == [True, True]


@pytest.mark.parametrize("kind", ["dynamodb", "bigquery", "nessie"])
def test_kinds_that_are_refused_are_told(kind):
    with pytest.raises(UnsupportedError):
        open_catalog("c", {"type": kind})
    assert f"`{kind}`" in PAGES["catalogs/index"]


def test_kinds_that_there_are_have_a_row():
    rows = re.findall(r"^\| `(\w+)`(?: \(or `(\w+)`\))? \|", PAGES["catalogs/index"], re.MULTILINE)
    assert {name for row in rows for name in row if name} - {"type", "warehouse"} == {*CATALOG_TYPES}
    assert {*KINDS} < {*CATALOG_TYPES}


def test_a_configuration_is_told_of_each_type_of_catalog():
    assert {*re.findall(r"`(\w+)`", rows("catalogs")["type"][0])} == {*CATALOG_TYPES}
    [line] = re.findall(r"^#   type +required: (.*)$", EXAMPLE, re.MULTILINE)
    assert {*re.findall(r"\w+", line)} - {"or"} == {*CATALOG_TYPES}


@for_each(
    "name",
    re.findall(
        r"`((?:s3|client|gcs|adls)\.[^`=*]+)`",
        "".join(re.findall(r"^Refused.*?\n\n", PAGES["stores"], re.MULTILINE | re.DOTALL)),
    ),
)
def test_a_property_that_is_told_to_be_refused_is(name):
    location = {"s3": "s3://b/k", "client": "s3://b/k", "gcs": "gs://b/k", "adls": "abfs://c@a/k"}[
        name.partition(".")[0]
    ]
    with pytest.raises(UnsupportedError):
        open_storage({name: "something"}).head(location)


PAGE = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE = (ROOT / "conf" / "icekeep.example.yaml").read_text()
HEALTH = (ROOT / "docs" / "health.md").read_text()


def keys_of(struct):
    return {*struct.__struct_encode_fields__}


def rows(heading):
    """The cells of the rows of a section's tables, by their first cell."""
    text = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    cells = [
        [one.strip() for one in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {first.strip("`"): rest for first, *rest in cells}


@for_each(
    ("heading", "keys"),
    [
        ("At the top", keys_of(shape.ConfigurationKeys)),
        ("runs", keys_of(shape.RunsKeys)),
        ("log", keys_of(shape.LogKeys)),
        ("metrics", keys_of(shape.MetricsKeys)),
        ("notifications", keys_of(shape.NotificationKeys)),
        ("prices", keys_of(Prices)),
        ("policies", keys_of(shape.PolicyKeys)),
        ("window", keys_of(shape.WindowKeys)),
        ("jobs", {"enabled", "when", *POLICY_JOBS}),
        ("when", CONDITIONS),
    ],
)
def test_a_section_has_all_keys_that_there_are_and_no_other(heading, keys):
    assert {*rows(heading)} == {*keys}


def test_where_else_a_key_may_stand_is_so():
    told = {key: {*re.findall(r"`(\w+)`", cells[1])} for key, cells in rows("policies").items()}
    assert {key for key, where in told.items() if "defaults" in where} == keys_of(shape.DefaultKeys)
    for layer in ("namespaces", "tables"):
        assert {key for key, where in told.items() if layer in where} == keys_of(shape.LayerKeys)


def test_defaults_are_those_that_are_told():
    text = "catalogs: {c: {type: sql}}\npolicies: [{name: n, schedule: null, match: c.**, jobs: {compact: }}]"
    [policy] = parse_config(text).policies
    told = {key: cells[2].strip("`") for key, cells in rows("policies").items()}
    assert told["retries"] == str(policy.retries)
    assert told["retry_delay"] == format_span(policy.retry_delay_ms)
    assert told["connection"] == policy.connection
    assert told["submit_over"] == str(policy.submit_over_bytes)
    assert rows("runs")["keep"][1].strip("`") == format_span(KEEP_MS)
    assert rows("prices")["currency"][1].strip("`") == Prices().currency


BURDENS = {
    "faults": {"faults_count": 10**9},
    "files": {"small_files_count": 10**12},
    "deletes": {"equality_delete_files_count": 10**12},
    "manifests": {"spare_manifests_count": 10**12},
    "snapshots": {"expirable_count": 10**12},
    "dangling": {"dangling_count": 10**12},
    "partitions": {"partition_skew": 1e12},
}


def test_the_formula_of_the_score_is_that_of_the_code():
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| (.+) \|$", HEALTH, re.MULTILINE)
    assert [name for name, _, _ in table] == [*BURDENS]
    words = " ".join(re.sub(r"[|]", " ", score_of.__doc__).split())
    for name, weight, burden in table:
        score, parts = score_of(Sickness(**BURDENS[name]))
        assert [part.name for part in parts] == [name]
        assert score == pytest.approx(100 * (1 - float(weight)), abs=0.1)
        assert f"{name} {weight} {burden}" in words


POLICIES = (DOCS / "policies.md").read_text()
FILTERS = (DOCS / "filters.md").read_text()
POLICY_SNIPPETS = re.findall(r"^```yaml\n(.*?)^```$", POLICIES, re.MULTILINE | re.DOTALL)
NOW_MS = 1_790_000_000_000


def cells(text, heading):
    """The cells of the first table behind a heading."""
    [table] = re.findall(rf"^#+ {heading}\n.*?^(\|.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_examples_of_policies_are_read():
    assert len(POLICY_SNIPPETS) == 2
    for snippet in POLICY_SNIPPETS:
        assert parse_config(snippet).policies


def test_the_example_decides_as_the_page_says():
    rules = parse_config(POLICY_SNIPPETS[0]).rules
    decided = {one.job: one.policy for one in rules_for(rules, "prod.sales.orders_eu").jobs}
    assert decided == {"compact": "orders", "expire_snapshots": "everything"}
    assert not rules_for(rules, "prod.raw.tmp_load").jobs


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        ("prod.*.orders", "prod.a.orders", "prod.a.b.orders"),
        ("prod.**", "prod.a.b.c", "lake.a.b"),
        ("prod.**.orders", "prod.a.b.orders", "prod.a.b.Orders"),
    ],
)
def test_patterns_match_as_the_page_says(pattern, matched, other):
    assert parse_glob(pattern).matches(matched)
    assert not parse_glob(pattern).matches(other)


def test_properties_that_the_page_shows_are_understood():
    shown = dict(re.findall(r"`(icekeep\.[\w.-]+)=([^`.]+)`", POLICIES))
    assert {"icekeep.enabled", "icekeep.mode", "icekeep.compact.when.small_files_over"} <= {*shown}
    properties = {name.replace("JOB", "compact"): value for name, value in shown.items()}
    heard = settings_of_properties(properties)
    assert heard.problems == ()
    assert len(heard.settings) == len(properties)


def test_conditions_and_stored_types_are_those_that_there_are():
    assert [cells[0].strip("`") for cells in cells(POLICIES, "Conditions")] == [*CONDITIONS]
    types = {cells[0].strip("`"): cells[1].strip("`") for cells in cells(POLICIES, "Policies that a catalog stores")}
    assert len(types) == 4
    for name, job in types.items():
        from_server = stored(name)
        assert {told.job for told in settings_of_polaris([from_server]).settings} == {job}


def stored(name):
    return StoredPolicy(name, "one", '{"enable": true}')


def test_filters_that_the_page_shows():
    commands = re.findall(r"^(\$ )?(icekeep .*--where.*)$", FILTERS, re.MULTILINE)
    assert len(commands) == 9
    refused = []
    for shown, line in commands:
        words = shlex.split(line)
        parse_command(words[1:], None, NOW_MS)
        text = words[words.index("--where") + 1]
        try:
            parse_where(text, NOW_MS)
        except ExpressionError:
            assert shown, text
            refused.append(text)
    assert refused == ["id >> 5"]
    for manifests in re.findall(r"`(manifest_length [^`]+)`", FILTERS):
        parse_where(manifests, NOW_MS)


PROPERTIES_PAGE = (ROOT / "docs" / "table-properties.md").read_text()
ROWS = {
    name: cells
    for line in re.findall(r"^\| (`.*) \|$", PROPERTIES_PAGE, re.MULTILINE)
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

OTHER_WORDS = {
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
    return found - OF_SUMMARIES - OTHER_WORDS


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


def test_icekeep_properties_are_those_of_policies():
    filled = {
        "icekeep.enabled": "false",
        "icekeep.mode": "observe",
        "icekeep.JOB.enabled": "false",
        "icekeep.JOB.when.CONDITION": "10",
        "icekeep.JOB.SETTING": "sort",
        "icekeep.JOB.options.OPTION": "10",
    }
    # Readers register by these, and a policy passes them over.
    readers = {"icekeep.consumer.NAME.snapshot-id", "icekeep.consumer.NAME.updated-ms"}
    assert {name for name in ROWS if name.startswith("icekeep.")} == {*filled} | readers
    for name, value in filled.items():
        real = name.replace("JOB", "compact").replace("CONDITION", "small_files_over").replace("SETTING", "strategy")
        heard = settings_of_properties({real.replace("OPTION", "min-input-files"): value})
        assert len(heard.settings) == 1
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


def test_defaults_in_words_match_code():
    assert ROWS["write.parquet.compression-level"][1].startswith(
        f"{PARQUET.compression_level} for {PARQUET.compression}"
    )
    assert write_options({"write.format.default": "avro"}).encoding == AvroOptions(codec="deflate", level=None)
    assert ROWS["write.avro.compression-codec"][1] == "gzip"
