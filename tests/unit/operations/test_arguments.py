import pytest

from icekeep.errors import UsageError
from icekeep.operations.arguments import OutputWish, output_wish, parse_command
from icekeep.operations.settings import JOB_SETTINGS

NOW_MS = 1_767_225_600_000


def parse(*words, job=None):
    return parse_command(words, job, NOW_MS, "1.2")


def test_a_job_s_script_and_the_command_take_the_same_flags():
    flags = ["--table", "db.t", "--where", "a > 1", "--option", "x=1", "--option=y=2", "--dry-run", "--conf", "f"]
    by_command, by_script = parse("compact", *flags), parse(*flags, job="compact")
    assert by_command == by_script
    assert by_command.arguments == {"where": "a > 1", "options": {"x": "1", "y": "2"}}
    assert (by_command.table, by_command.dry_run, by_command.conf) == ("db.t", True, "f")


def test_only_settings_that_were_given_are_passed_on():
    for job in JOB_SETTINGS:
        command = parse(job, "--table", "db.t")
        assert command.arguments == {}
        assert (command.output, command.result_file, command.verbose, command.dry_run) == ("table", None, False, False)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["compress"], "invalid choice: 'compress'"),
        (["compact"], "the following arguments are required: --table; see icekeep compact --help"),
        (["compact", "--table", "db.t", "--colour", "red"], "unrecognized arguments: --colour red"),
        (["compact", "--table", "db.t", "--older-than", "7d"], "unrecognized arguments: --older-than 7d"),
        (["plan_scan", "--table", "db.t", "--option", "a=b"], "unrecognized arguments: --option a=b"),
        (["expire_snapshots", "--table", "db.t", "--where", "a = 1"], "unrecognized arguments: --where a = 1"),
        (["compact", "--tab", "db.t"], "the following arguments are required: --table"),
        (["compact", "--table"], "argument --table: expected one argument"),
        (["compact", "--table", "db.t", "--output", "xml"], "argument --output: invalid choice: 'xml'"),
        (["compact", "--table", "db.t", "--option", "a"], "argument --option: 'a' is not of the form KEY=VALUE"),
        (["compact", "--table", "db.t", "--option", "a=1", "--option", "a=2"], "option 'a' is given twice"),
        (["expire_snapshots", "--table", "db.t", "--retain-last", "0"], "argument --retain-last: '0' is not a whole"),
        (
            ["expire_snapshots", "--table", "db.t", "--older-than", "x"],
            "argument --older-than: cannot read the time 'x'",
        ),
        (["config"], "the following arguments are required: ACTION"),
    ],
)
def test_a_mistake_is_one_line(words, message):
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_script_s_mistake_names_the_script():
    with pytest.raises(UsageError, match=r"the following arguments are required: --table; see compact\.py --help"):
        parse("--tab", "db.t", job="compact")


def test_config_show_needs_no_table():
    command = parse("config", "show", "--conf", "f", "--output", "json")
    assert (command.name, command.conf, command.output) == ("config show", "f", "json")


@pytest.mark.parametrize("words", [["--help"], ["compact", "--help"], ["--version"], ["config", "show", "--help"]])
def test_help_and_version_are_printed_and_end_the_process(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        (["compact", "--wrong", "--output", "json", "--result-file=r", "--verbose"], OutputWish("json", "r", True)),
        (["--output=json"], OutputWish("json", None, False)),
        (["--output", "xml", "--verbose"], OutputWish("table", None, True)),
        ([], OutputWish("table", None, False)),
    ],
)
def test_how_an_answer_is_wanted_is_told_from_a_wrong_command_line_too(words, wish):
    assert output_wish(words) == wish
