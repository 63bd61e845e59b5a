import argparse
import re
import shlex
from pathlib import Path

import pytest

from icekeep.errors import UsageError
from icekeep.operations.arguments import OutputOptions, named_command, output_options, parse_command, parser_of
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.jobs import JOBS
from icekeep.settings import SettingKind
from kit.cases import for_each

NOW_MS = 1_767_225_600_000


def parse(*words, job=None):
    return parse_command(words, job, NOW_MS)


def test_a_job_s_script_and_the_command_take_the_same_flags():
    flags = ["--table", "db.t", "--where", "a > 1", "--option", "x=1", "--option=y=2", "--dry-run", "--conf", "f"]
    by_command, by_script = parse("compact", *flags), parse(*flags, job="compact")
    assert by_command == by_script
    assert by_command.arguments == {"where": "a > 1", "options": {"x": "1", "y": "2"}}
    assert (by_command.table, by_command.dry_run, by_command.conf) == ("db.t", True, "f")


def test_only_settings_that_were_given_are_passed_on():
    for job in JOBS.values():
        kinds = {SettingKind.IDS: (7,), SettingKind.FILTER: "7"}
        must = {s.argument: kinds.get(s.kind, 7) for s in job.settings if s.is_required}
        command = parse(job.name, "--table", "db.t", *(f"--{name}=7" for name in must))
        assert command.arguments == must
        assert (command.output, command.result_file, command.verbose, command.dry_run) == ("table", None, False, False)


def test_repeated_single_value_flag_is_refused():
    """Also on the scripts of jobs; a flag without a value says the same twice."""
    given = {"--output": "json", "--log-format": "json", "--color": "never", "--edge": "keep"}
    for name in (*JOBS, *COMMANDS):
        parser = parser_of(name, NOW_MS)
        valued = [
            action.option_strings[0]
            for action in parser._actions
            if action.option_strings and action.nargs is None and not isinstance(action, argparse._AppendAction)
        ]
        assert "--output" in valued
        for flag in valued:
            action = parser._option_string_actions[flag]
            action.type = None
            words = [f"{flag}={given.get(flag, '1')}"] * 2
            with pytest.raises(UsageError, match=f"argument .*{flag}.*: is given twice; give it once"):
                parser.parse_known_args(words)


def test_settings_are_read_to_values():
    command = parse(
        "expire_snapshots",
        *("--table", "db.t", "--older-than", "1d", "--retain-last", "3"),
        *("--snapshot-ids", "1,2", "--clean-expired-metadata"),
    )
    assert command.arguments == {
        "older_than": NOW_MS - 86_400_000,
        "retain_last": 3,
        "snapshot_ids": (1, 2),
        "clean_expired_metadata": True,
    }
    assert parse("rewrite_manifests", "--table", "db.t", "--spec-id", "ALL").arguments == {"spec_id": "all"}


@pytest.mark.slow
@for_each(
    ("words", "message"),
    [
        (["--versoin"], "there is no flag '--versoin' before the command; did you mean '--version'?"),
        (["--bogus", "compact"], "there is no flag '--bogus' before the command; see icekeep --help"),
        (
            ["--config=x", "compact", "--table", "db.t"],
            "flag '--config' stands before the command; write `icekeep compact --config ...`",
        ),
        (["--dry-run"], "flag '--dry-run' stands before the command; write `icekeep COMMAND --dry-run ...`"),
        (
            ["--dry-run", "ref", "list"],
            "ref list has no flag '--dry-run'; `icekeep ref list --help` lists those that it has",
        ),
        (["--config", "x", "config", "show"], "write `icekeep config show --config ...`"),
        (["--dry-run", "compact"], "write `icekeep compact --dry-run ...`"),
        (["small_files"], "there is no command 'small_files'; `icekeep --help` lists them"),
        (["add_file"], "no command does what Iceberg's procedure 'add_files' does"),
        (["maintain", "--table", "db.t"], "maintain has no flag '--table'; did you mean '--tables'?"),
        (
            ["compact", "--table", "db.t", "--target-file-size-bytes", "5"],
            "compact has no flag '--target-file-size-bytes'; write `--option target-file-size-bytes=...`",
        ),
        (["compact", "db.t"], "'db.t' stands without a flag; write `icekeep compact --table db.t`"),
        (["compact", "db.t", "--dry-run"], "write `icekeep compact --table db.t --dry-run`"),
        (
            ["expire_snapshots", "--table", "db.t", "--retain_last", "3"],
            "there is no flag '--retain_last'; did you mean '--retain-last'?",
        ),
        (["ref", "list", "db.t"], "'db.t' stands without a flag; write `icekeep ref list --table db.t`"),
        (["compact", "db.u", "--table", "db.t"], "unrecognized arguments: db.u"),
        (["compress"], "there is no command 'compress'; `icekeep --help` lists them"),
        (["compct"], "there is no command 'compct'; did you mean 'compact'?"),
        (["remove-orphan-file"], "there is no command 'remove-orphan-file'; did you mean 'remove_orphan_files'?"),
        (["create-tag"], "there is no command 'create-tag'; did you mean 'ref create-tag'?"),
        (
            ["rewrite_data_file", "--table", "db.t"],
            "there is no command 'rewrite_data_file'; `icekeep compact` does what Iceberg's procedure 'rewrite_data_files' does",
        ),
        (
            ["migrate"],
            "there is no command 'migrate', and no command does what Iceberg's procedure 'migrate' does; `icekeep --help` lists",
        ),
        (["compact", "--tabel", "db.t"], "there is no flag '--tabel'; did you mean '--table'?"),
        (["compact", "-table", "db.t"], "there is no flag '-table'; did you mean '--table'?"),
        (["compact", "--table", "db.t", "--were=a = 1"], "there is no flag '--were'; did you mean '--where'?"),
        (["compact", "--", "--tabel"], "one of the arguments --table --match is required; see icekeep compact --help"),
        (["compact"], "one of the arguments --table --match is required; see icekeep compact --help"),
        (["drop"], "the following arguments are required: --table; see icekeep drop --help"),
        (["compact", "--table", "db.t", "--match", "db.*"], "argument --match: not allowed with argument --table"),
        (
            ["compact", "--table", "lake.db.*"],
            "argument --table: 'lake.db.*' names no table; `--match 'lake.db.*'` takes patterns",
        ),
        (["check", "--table", "db.t?"], "`--match 'db.t?'` takes patterns"),
        (["compact", "db.*"], "'db.*' stands without a flag; write `icekeep compact --match 'db.*'`"),
        (
            ["compact", "--match", "db.*", "--plan-out", "f"],
            "--plan-out writes the plan of one table to a file; give --table, or --dry-run, which shows the plans of all",
        ),
        (
            ["compact", "--match", "db.*", "--policy", "nightly"],
            "--policy is for a job on one table; give --table, or run `icekeep maintain --policy nightly --match 'db.*'`",
        ),
        (["drop", "--match", "db.*"], "drop works on one table and has no flag '--match'; give --table"),
        (["compact", "--table", "db.t", "--json"], "there is no flag '--json'; write `--output json`"),
        (["drop", "--table", "db.t", "--policy", "nightly"], "unrecognized arguments: --policy nightly"),
        (["maintain", "--max-bytes", "1x"], "'1x' is neither a whole number of 1 or more nor a size such as 10MB"),
        (["compact", "--table", "db.t", "--shade", "red"], "unrecognized arguments: --shade red"),
        (["compact", "--table", "db.t", "--older-than", "7d"], "unrecognized arguments: --older-than 7d"),
        (["plan_scan", "--table", "db.t", "--option", "a=b"], "unrecognized arguments: --option a=b"),
        (["expire_snapshots", "--table", "db.t", "--where", "a = 1"], "unrecognized arguments: --where a = 1"),
        (["compact", "--tab", "db.t"], "there is no flag '--tab'; did you mean '--table'?"),
        (["compact", "--table"], "argument --table: expected one argument"),
        (["compact", "--table", "db.t", "--output", "xml"], "argument --output: invalid choice: 'xml'"),
        (["compact", "--table", "db.t", "--option", "a"], "argument --option: 'a' is not of the form KEY=VALUE"),
        (
            ["compact", "--table", "db.t", "--option", "a=1", "--option", "a=2"],
            "argument --option: 'a' is given twice; give it once",
        ),
        (
            ["remove_orphan_files", "--table", "db.t", "--equal-schemes", "a=b", "--equal-schemes", "a=c"],
            "argument --equal-schemes: 'a' is given twice; give it once",
        ),
        (["expire_snapshots", "--table", "db.t", "--retain-last", "0"], "argument --retain-last: '0' is not a whole"),
        (
            ["expire_snapshots", "--table", "db.t", "--older-than", "x"],
            "argument --older-than: cannot read the time 'x'",
        ),
        (
            ["expire_snapshots", "--table", "db.t", "--older-than", "-1d"],
            "argument --older-than: the age '-1d' is below zero; an age says how long ago, as in 1d",
        ),
        (
            ["ref", "create-tag", "a", "--table", "db.t", "--max-ref-age", "-1d"],
            "argument --max-ref-age: the duration '-1d' is below zero; give how long, as in 1d",
        ),
        (
            ["expire_snapshots", "--table", "db.t", "--trash", "-1d"],
            "argument --trash: '-1d' is not whole days, 0 or more",
        ),
        (
            ["expire_snapshots", "--table", "db.t", "--retain-last", "-1"],
            "--retain-last: '-1' is not a whole number of 1",
        ),
        (
            ["expire_snapshots", "--table", "db.t", "--snapshot-ids", "9223372036854775808"],
            "'9223372036854775808' is above 9223372036854775807, the largest number that Iceberg has room for",
        ),
        (
            ["rewrite_manifests", "--table", "db.t", "--spec-id", "x"],
            "argument --spec-id: 'x' is neither a whole number of 0 or more nor 'all'",
        ),
        (["compact", "--table", "db.t", "--table", "db.u"], "argument --table: is given twice; give it once; see"),
        (["compact", "--table", "db.t", "--conf=a", "--config=b"], "argument --config/--conf: is given twice"),
        (["compact", "--table", "db.t", "--output", "json", "--output", "json"], "argument --output: is given twice"),
        (
            ["expire_snapshots", "--table", "db.t", "--snapshot-ids", "1", "--snapshot-ids", "2"],
            "--snapshot-ids: is given twice; give it once; several values go after one flag, with commas between",
        ),
        (
            ["rollback", "--table", "db.t", "--timestamp", "1d", "--timestamp", "2d"],
            "argument --timestamp: is given twice",
        ),
        (["compact", "--table", "db.t", "--branch"], "argument --branch: expected one argument"),
        (["plan_scan", "--table", "db.t", "--branch", "b"], "unrecognized arguments: --branch b"),
        (["config"], "say what `icekeep config` is to do: `icekeep config show`"),
        (["ref"], "say what `icekeep ref` is to do: `icekeep ref list`, `icekeep ref create-branch`"),
        (
            ["policy", "--config", "x"],
            "say what `icekeep policy` is to do: `icekeep policy explain`, `icekeep policy check`",
        ),
        (["compact", "--table", "db.t", "--target-file-size", "1"], "did you mean '--option target-file-size-bytes'?"),
        (["ref", "make"], "there is no command 'ref make'; `icekeep ref --help` lists them"),
        (["ref", "lst"], "there is no command 'ref lst'; did you mean 'ref list'?"),
        (["ref", "list"], "the following arguments are required: --table; see icekeep ref list --help"),
        (["ref", "list", "--table", "db.t", "--dry-run"], "unrecognized arguments: --dry-run"),
        (["ref", "create-tag", "--table", "db.t"], "required: NAME; see icekeep ref create-tag --help"),
        (["ref", "create-tag", "a", "b", "--table", "db.t"], "unrecognized arguments: b"),
        (["ref", "create-tag", "a", "--table", "db.t", "--max-snapshot-age", "7d"], "unrecognized arguments"),
        (
            ["ref", "create-tag", "a", "--table", "db.t", "--max-ref-age", "7"],
            "--max-ref-age: cannot read the duration '7'",
        ),
        (
            ["ref", "create-tag", "a", "--table", "db.t", "--max-ref-age", "0s"],
            "--max-ref-age: the duration '0s' is too short",
        ),
        (["ref", "replace-tag", "a", "--table", "db.t"], "the following arguments are required: --snapshot-id"),
        (["ref", "fast-forward", "a", "--table", "db.t"], "the following arguments are required: --to"),
        (
            ["rollback", "--table", "db.t"],
            "one of the arguments --snapshot-id --timestamp --set-current --set-current-ref",
        ),
        (["rollback", "--table", "db.t", "--set-current", "1", "--timestamp", "1d"], "not allowed with argument"),
        (["rollback", "--table", "db.t", "--snapshot-id", "x"], "argument --snapshot-id: 'x' is not a whole number"),
        (["ref", "publish", "--table", "db.t"], "one of the arguments --snapshot-id --wap-id is required"),
    ],
)
def test_a_mistake_is_one_line(words, message):
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@for_each(
    ("words", "name", "arguments"),
    [
        ("ref list", "ref list", {}),
        ("ref create-branch b", "ref create-branch", {"name": "b"}),
        (
            "ref create-branch b --snapshot-id 5 --max-ref-age 1h --max-snapshot-age 2d --min-snapshots-to-keep 3",
            "ref create-branch",
            {
                "name": "b",
                "snapshot_id": 5,
                "max_ref_age": 3_600_000,
                "max_snapshot_age": 172_800_000,
                "min_snapshots_to_keep": 3,
            },
        ),
        ("ref fast-forward main --to audit", "ref fast-forward", {"branch": "main", "to": "audit"}),
        ("ref rename-branch a --to b", "ref rename-branch", {"name": "a", "new_name": "b"}),
        ("ref publish --wap-id w1", "ref publish", {"wap_id": "w1"}),
        ("rollback --timestamp 1d", "rollback", {"timestamp": NOW_MS - 86_400_000}),
        ("rollback --set-current-ref v1", "rollback", {"set_current_ref": "v1"}),
    ],
)
def test_command_has_words_and_arguments_of_its_function(words, name, arguments):
    command = parse(*words.split(" "), "--table", "db.t", "--catalog", "c", "--conf", "f", "--output", "json")
    assert (command.name, command.arguments) == (name, arguments)
    assert (command.table, command.catalog, command.conf, command.output) == ("db.t", "c", "f", "json")
    assert not command.dry_run


def test_the_branch_of_a_job_is_a_setting():
    for job in ("compact", "rewrite_manifests"):
        assert parse(job, "--table", "db.t", "--branch", "audit").arguments == {"branch": "audit"}


@for_each(
    ("words", "name"),
    [
        (["compact", "--wrong"], "compact"),
        (["ref", "create-tag"], "ref create-tag"),
        (["ref", "make"], None),
        (["ref"], None),
        (["rollback", "--wrong"], "rollback"),
        (["config", "show", "--wrong"], "config show"),
        (["--wrong"], None),
        ([], None),
    ],
)
def test_a_wrong_command_line_still_names_its_command(words, name):
    assert named_command(words) == name


def test_a_script_s_mistake_names_the_script():
    with pytest.raises(UsageError, match=r"one of the arguments --table --match is required; see compact\.py --help"):
        parse("--branch", "b", job="compact")


def test_config_show_needs_no_table():
    command = parse("config", "show", "--conf", "f", "--output", "json")
    assert (command.name, command.conf, command.output) == ("config show", "f", "json")


@pytest.mark.parametrize("words", [["--help"], ["compact", "--help"], ["--version"], ["config", "show", "--help"]])
def test_help_and_version_are_printed_and_end_the_process(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 0
    assert capsys.readouterr().out


@for_each(
    ("words", "output"),
    [
        (["compact", "--wrong", "--output", "json", "--result-file=r", "--verbose"], OutputOptions("json", "r", True)),
        (["--output=json"], OutputOptions("json", None, False)),
        (
            ["--output=json", "--output", "json", "--config=f", "--config=g"],
            OutputOptions("json", None, False, conf="g"),
        ),
        (["--output", "xml", "--verbose"], OutputOptions("table", None, True)),
        ([], OutputOptions("table", None, False)),
    ],
)
def test_output_options_are_read_from_invalid_command_too(words, output):
    assert output_options(words) == output


def test_a_job_may_be_named_with_dashes():
    command = parse_command(["rewrite-manifests", "--table", "db.t"], None, 0)
    assert command.name == named_command(["rewrite-manifests"]) == "rewrite_manifests"


def test_the_configuration_s_flag_has_two_names():
    assert {
        parse_command(["compact", "--table", "db.t", flag, "x.yaml"], None, 0).conf for flag in ("--conf", "--config")
    } == {"x.yaml"}


def test_a_setting_of_spark_is_not_taken_for_a_file():
    with pytest.raises(UsageError, match=r"is a setting of Spark, and this flag names icekeep's configuration"):
        parse_command(["compact", "--table", "db.t", "--conf", "spark.executor.memory=8g"], None, 0)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_the_examples_in_a_job_s_help_are_command_lines_of_it(job, capsys):
    assert job.examples
    for example in job.examples:
        assert parse_command([job.name, *shlex.split(example)], None, 0).name == job.name
    with pytest.raises(SystemExit):
        parse_command([job.name, "--help"], None, 0)
    # A command that is longer than a line goes on behind a backslash.
    shown = re.sub(r" \\\n +", " ", capsys.readouterr().out)
    assert all(f"  icekeep {job.name} {example}\n" in shown for example in job.examples)


def test_the_command_alone_shows_its_help_and_is_a_mistake(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_command([], None, NOW_MS)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert "many tables:" in shown.err


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", [None, *JOBS, *COMMANDS])
def test_help_fits_the_terminal(name, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        parse_command([*(name.split() if name else ()), "--help"], None, NOW_MS)
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > max(width, 66)] == []


@pytest.mark.parametrize("name", ["apply", "report", "runs", "maintain"])
def test_help_examples_are_valid_command_lines(name, capsys):
    assert COMMANDS[name].examples
    for example in COMMANDS[name].examples:
        words = shlex.split(example.partition(" > ")[0])
        assert parse_command([name, *words], None, NOW_MS).name == name
    shown = helped(name, capsys)
    assert all(f"  icekeep {name} {example}".rstrip() + "\n" in shown for example in COMMANDS[name].examples)
    assert "  4    a safety check refused, or a plan does not hold any more" in shown


def test_help_says_what_forms_of_output_need(capsys):
    shown = " ".join(helped("report", capsys).split())
    assert "prometheus needs icekeep[telemetry], html needs icekeep[report]" in shown
    assert "also write the result to a file, always as JSON; for any other form send stdout to one" in shown
    assert "for any other form" not in helped("runs", capsys)


def helped(name, capsys):
    with pytest.raises(SystemExit):
        parse_command([name, "--help"], None, NOW_MS)
    return capsys.readouterr().out


def test_help_says_the_options_and_their_defaults(capsys):
    with pytest.raises(SystemExit):
        parse_command(["compact", "--help"], None, 0)
    words = capsys.readouterr().out.partition("options of --option")[2].replace(",", " ").split()
    assert {"min-input-files=5", "rewrite-all=false", "rewrite-job-order=none", "target-file-size-bytes"} <= {*words}
    assert "delete-file-threshold" in words  # without a limit


def test_exit_statuses_in_help_match_readme(capsys):
    with pytest.raises(SystemExit):
        parse_command(["compact", "--help"], None, 0)
    help_ = capsys.readouterr().out
    assert "3    part of it is committed" in help_
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    told = re.findall(r"^  ((?:\d+, )?\d+)  ", help_, re.MULTILINE)
    assert told == re.findall(
        r"^\| ((?:\d+, )?\d+) \|", readme.partition("| exit status | meaning ")[2][:1500], re.MULTILINE
    )
