import inspect

import pytest

from icekeep.operations.arguments import parse_command
from icekeep.operations.command_specs import COMMANDS, GROUP_SUMMARIES, HELP_GROUPS, CommandScope
from icekeep.operations.commands.maintain import FleetOptions
from icekeep.operations.jobs import JOBS, resolve
from kit.cases import for_each

DRY = ("apply", "restore", "unregister", "copy_table", "rewrite_table_path")
TAKEN_FIRST = {
    CommandScope.TABLE: {"table"},
    CommandScope.NEW_TABLE: {"catalog", "identifier"},
    CommandScope.CATALOGS: {"catalogs", "catalog", "spark"},
    CommandScope.POLICIES: {"config", "catalogs", "opens", "catalog"},
    CommandScope.CONFIGURATION: {"config", "catalogs", "environ"},
    CommandScope.NOTHING: set(),
    CommandScope.FLEET: set(),
    CommandScope.PLAN: {"command", "context"},
}


@for_each("words", COMMANDS)
def test_a_command_s_settings_are_arguments_of_its_function(words):
    verb = COMMANDS[words]
    # What there is too much of for a list of arguments is a value of its own.
    function = FleetOptions if verb.scope is CommandScope.FLEET else resolve(verb.run)
    parameters = inspect.signature(function).parameters
    settings = verb.settings + verb.one_of
    taken = {setting.argument for setting in settings}
    assert len(taken) == len(settings)
    about = TAKEN_FIRST[verb.scope] | ({"listener"} if verb.takes_listener else set())
    about |= {"spark"} if verb.takes_spark else set()
    about |= {"open_catalog"} if verb.opens_catalogs else set()
    about |= {name for text in verb.texts.values() for name in text.arguments}
    assert taken | about == parameters.keys()
    must = {name for name, p in parameters.items() if p.default is p.empty} - about
    assert must == {s.argument for s in settings if s.is_required}


def test_words_are_one_or_two_and_the_first_of_two_has_a_summary():
    firsts = {words.split(" ")[0] for words in COMMANDS if " " in words}
    assert firsts == GROUP_SUMMARIES.keys()
    assert not firsts & {*COMMANDS, *JOBS}
    assert max(words.count(" ") for words in COMMANDS) == 1


def test_help_lists_each_command_once_by_scope(capsys):
    listed = [name for names in HELP_GROUPS.values() for name in names]
    assert sorted(listed) == sorted({*(words.split(" ")[0] for words in COMMANDS), "config"})
    with pytest.raises(SystemExit):
        parse_command(["--help"], None, 0)
    out = capsys.readouterr().out
    places = [out.index(f"\n  {name} ") for name in listed]
    assert places == sorted(places)
    assert out.index("many tables:") < places[0] < out.index("one table:") < out.index("set-up:")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_a_help_text_that_says_what_it_is_for(words, capsys):
    with pytest.raises(SystemExit):
        parse_command([*words.split(" "), "--help"], None, 0)
    out = capsys.readouterr().out
    summary = COMMANDS[words].summary
    assert summary[1:] in " ".join(out.split())
    assert ("--dry-run" in out) is (COMMANDS[words].changes or words in DRY)
    is_about_tables = bool({"table", "tables"} & {setting.name for setting in COMMANDS[words].settings})
    is_about_one = COMMANDS[words].scope in (CommandScope.TABLE, CommandScope.NEW_TABLE)
    assert ("--table" in out) is (is_about_one or is_about_tables)
    for name in COMMANDS[words].texts:
        assert name in out
    where = {CommandScope.NOTHING: (), CommandScope.CONFIGURATION: ("--conf",)}
    for flag in (*where.get(COMMANDS[words].scope, ("--catalog", "--conf")), "--output", "--result-file", "--verbose"):
        assert flag in out


def test_the_command_s_help_lists_everything(capsys):
    with pytest.raises(SystemExit):
        parse_command(["--help"], None, 0)
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {*JOBS, *(words.split(" ")[0] for words in COMMANDS), "config"} <= {*listed}
    with pytest.raises(SystemExit):
        parse_command(["ref", "--help"], None, 0)
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {words.removeprefix("ref ") for words in COMMANDS if words.startswith("ref ")} <= {*listed}
