"""The schema that editors check a configuration with: what it refuses the loader refuses, and what is shown passes both."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from icekeep import cli
from icekeep.errors import ConfigError
from icekeep.operations.configuration.editor_schema import configuration_schema
from icekeep.operations.configuration.file import parse_config
from kit.cases import for_each
from kit.pages import configurations

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "conf" / "icekeep.example.yaml"
SCHEMA = configuration_schema()
SHOWN = [
    EXAMPLE.read_text(),
    *(text for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] for text in configurations(page)),
]
POLICY = "policies: [{name: p, schedule: '@daily', match: 'a.**', jobs: {check: }}]"


def refusals(text):
    """What the schema says of a file, as editors read it: dates are texts for JSON."""
    read = json.loads(json.dumps(yaml.safe_load(text), default=str))
    return [f"{one.json_path}: {one.message}" for one in Draft202012Validator(SCHEMA).iter_errors(read)]


def test_it_is_a_schema_and_the_command_prints_it(capsys):
    Draft202012Validator.check_schema(SCHEMA)
    assert cli.main(["schema", "--configuration"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert cli.main(["schema", "--configuration", "--job", "check"]) == 2
    assert "--job and --configuration are two schemas; give one of them" in capsys.readouterr().err


def test_the_example_and_what_the_docs_show_pass():
    assert len(SHOWN) > 10
    assert {text: said for text in SHOWN if (said := refusals(text))} == {}


def test_the_example_passes_with_all_that_it_has_in_comments():
    """Its blocks are uncommented; those after the first that have the same key are left out."""
    text = re.sub(
        r"^# ((?:prices|runs|metrics):\n(?:#   .*\n)+)",
        lambda block: block[1].replace("\n#", "\n"),
        EXAMPLE.read_text(),
        flags=re.M,
    )
    assert {"prices", "runs"} <= yaml.safe_load(text).keys()
    assert refusals(text) == []
    parse_config(text)


@for_each(
    "text",
    [
        "",
        POLICY,
        "catalogs: {c: {type: other, s3.retries: 010, s3.ssl: true}}",
        "runs: {enabled: false, keep: 30d, uri: '${RUNS}', table: a.b.c}",
        "metrics: {labels: {env: prod, shard: 3}}",
        "defaults: {schedule: null, jobs: {compact: {options: {target-file-size-bytes: 128MB}}}}\n"
        "policies: [{name: p, tables: [a.b.c], jobs: {compact: {enabled: false}}}]",
        "tables: {a.b.c: {mode: observe, window: {from: 22:00, to: '06:00', days: [Mon], zone: Europe/Berlin}}}",
        "namespaces: {a: {jobs: {expire_snapshots: {older_than: 2026-01-01, snapshot_ids: [1, 2], trash: 3d}}}}",
        "tables: {a.b.c: {jobs: {compact: {when: {small_files_over: 5, delete_ratio_over: 0.5, age_over: 7d}}}}}",
        POLICY.replace(
            "match: 'a.**'", "match: [a.b.*, b.**], except: a.b.c, submit_over: 2GiB, files: x.txt, retries: 0"
        ),
        POLICY.replace(
            "match: 'a.**'", "match: a.**, submit_over: null, deploy_mode: client, spark_conf: {spark.a: 1}"
        ),
    ],
)
def test_what_the_loader_takes_passes(text):
    parse_config(text)
    assert refusals(text) == []


@for_each(
    "text",
    [
        "catalog: {}",
        "catalogs: {c: {uri: x}}",
        "catalogs: {c: {type: ''}}",
        "catalogs: {c: {type: sql, uri: [x]}}",
        "catalogs: {a.b: {type: sql}}",
        "prices: {core_hour: -1}",
        "prices: {core: 1}",
        "runs: {enabled: 1}",
        "runs: {keep: 5}",
        "runs: {keep: 5 days}",
        "log: {format: xml}",
        "metrics: {labels: {a-b: c}}",
        "policies: {}",
        POLICY.replace("name: p, ", ""),
        POLICY.replace("name: p", "name: a b"),
        POLICY.replace("schedule: '@daily', ", ""),
        POLICY.replace("match: 'a.**', ", ""),
        POLICY.replace("match: 'a.**'", "tables: []"),
        POLICY.replace(", jobs: {check: }", ""),
        POLICY.replace("check: ", "compress: "),
        POLICY.replace("check: ", "check: {deeper: true}"),
        POLICY.replace("check: ", "check: {deep: 1}"),
        POLICY.replace("check: ", "check: {all_of: 3}"),
        POLICY.replace("check: ", "check: {when: {files_over: 3}}"),
        POLICY.replace("check: ", "check: {when: {age_over: 3}}"),
        POLICY.replace("check: ", "expire_snapshots: {retain_last: many}"),
        POLICY.replace("check: ", "compact: {where: ''}"),
        POLICY.replace("check: ", "compact: {options: [a]}"),
        POLICY.replace("check: ", "drop: "),
        POLICY.replace("name: p", "name: p, retries: -1"),
        POLICY.replace("name: p", "name: p, mode: watch"),
        POLICY.replace("name: p", "name: p, deploy_mode: cloud"),
        POLICY.replace("name: p", "name: p, submit_over: much"),
        POLICY.replace("name: p", "name: p, window: {from: noon}"),
        "tables: {a.b.c: {schedule: '@daily'}}",
    ],
)
def test_what_is_wrong_fails_here_and_in_the_loader(text):
    with pytest.raises(ConfigError):
        parse_config(text)
    assert refusals(text) != []


@pytest.mark.process
def test_msgspec_keeps_to_its_memory_with_these_types():
    """It writes past it where a text with a pattern and a list are joined (0.22), and the process dies at its end."""
    code = (
        "import gc, msgspec; from icekeep.operations.configuration.shape import ConfigurationKeys\n"
        "for _ in range(5): msgspec.json.Decoder(ConfigurationKeys); gc.collect()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "lib"), "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
