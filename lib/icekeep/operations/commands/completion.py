"""The command `completion`: a script by which a shell completes commands, flags and their values.

All is in the script, read from the parsers of the command line, so that a TAB starts no Python. Names of catalogs and tables are
not in it: to list them is to read a configuration, or to ask a server.
"""

import argparse
import shlex
from collections.abc import Iterator

import msgspec

from icekeep.operations.arguments import command_parser
from icekeep.operations.jobs import JOBS

_FILES = frozenset({"FILE", "PATH", "DIR"})
"""What usage lines call the values that are files or directories of this machine."""


class CompletionScript(msgspec.Struct, frozen=True, kw_only=True):
    """The script for one shell."""

    shell: str
    script: str


class _Value(msgspec.Struct, frozen=True):
    """What stands behind a flag, or without one."""

    shown: str
    words: tuple[str, ...]
    is_required: bool

    @property
    def is_file(self) -> bool:
        return self.shown in _FILES


class _Flag(msgspec.Struct, frozen=True):
    name: str
    help: str
    value: _Value | None
    repeats: bool


class _Command(msgspec.Struct, frozen=True):
    """What can follow the words `name`: the next word of a command, by its summary, or flags and values."""

    name: str
    next_words: dict[str, str]
    flags: tuple[_Flag, ...]
    values: tuple[_Value, ...]

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.name, self.name.replace("_", "-")])) if self.name in JOBS else (self.name,)

    @property
    def offered(self) -> tuple[str, ...]:
        """All words that can stand where no value of a flag is expected."""
        return (*self.next_words, *(word for value in self.values for word in value.words))


def completion(*, shell: str) -> CompletionScript:
    """The script of a shell.

    Args:
        shell: one of `SCRIPTS`.
    """
    # Times and the version are in no script.
    commands = tuple(_below("", command_parser(now_ms=0)))
    return CompletionScript(shell=shell, script="\n".join(SCRIPTS[shell](commands)) + "\n")


def script_text(shown: CompletionScript) -> str:
    return shown.script


def _below(name: str, parser: argparse.ArgumentParser) -> Iterator[_Command]:
    parsers: dict[str, argparse.ArgumentParser] = {}
    flags, values = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers = dict(action.choices)
        elif action.option_strings:
            flags.append(_flag(action, parser))
        else:
            values.append(_value(action))
    summaries = {word: _summary(below) for word, below in parsers.items()}
    yield _Command(name, summaries, tuple(flags), tuple(values))
    for word, below in parsers.items():
        yield from _below(f"{name} {word}".strip(), below)


def _flag(action: argparse.Action, parser: argparse.ArgumentParser) -> _Flag:
    name = next(one for one in action.option_strings if one.startswith("--"))
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    value = None if action.nargs == 0 else _value(action)
    return _Flag(name, text, value, isinstance(action, argparse._AppendAction))


def _value(action: argparse.Action) -> _Value:
    shown = str(action.metavar or action.dest.upper())
    return _Value(shown, tuple(map(str, action.choices or ())), action.nargs != argparse.OPTIONAL)


def _summary(parser: argparse.ArgumentParser) -> str:
    """What a command does, in the first sentence of its help."""
    return str(parser.description).partition(". `")[0].removesuffix(".")


def _bash(commands: tuple[_Command, ...]) -> Iterator[str]:
    groups = [one.name for one in commands if one.name and one.next_words]
    yield from (
        "# Tab completion of icekeep for bash, made by `icekeep completion bash`.",
        "_icekeep() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= flags= words=",
        "    # Bash takes --flag=value for three words.",
        "    if [[ $current == = ]]; then",
        "        current=",
        "    elif [[ $previous == = ]]; then",
        "        previous=${COMP_WORDS[COMP_CWORD-2]}",
        "    fi",
        "    if (( COMP_CWORD > 1 )); then",
        "        command=${COMP_WORDS[1]}",
        "    fi",
        "    case $command in",
        f"        {'|'.join(groups)})",
        "            if (( COMP_CWORD > 2 )); then",
        '                command="$command ${COMP_WORDS[2]}"',
        "            fi ;;",
        "    esac",
        "    case $command in",
    )
    for command in commands:
        yield f"        {'|'.join(map(shlex.quote, command.spellings))})"
        yield f"            flags={shlex.quote(' '.join(flag.name for flag in command.flags))}"
        yield f"            words={shlex.quote(' '.join(command.offered))}"
        yield from _bash_values(command)
        yield "            ;;"
    yield from (
        "        *) return ;;",
        "    esac",
        "    if [[ $current == -* ]]; then",
        "        words=$flags",
        "    fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "_icekeep_files() {",
        "    # Bash 3.2, which macOS has, cannot ask for its own completion of files here.",
        '    compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "$1"))',
        "}",
        "complete -F _icekeep icekeep",
    )


def _bash_values(command: _Command) -> Iterator[str]:
    """What is completed behind flags that take a value, and where a file stands without one."""
    valued = [(flag.name, flag.value) for flag in command.flags if flag.value is not None]
    if valued:
        yield "            case $previous in"
        for name, value in valued:
            if value.words:
                words = shlex.quote(" ".join(value.words))
                yield f'                {name}) COMPREPLY=($(compgen -W {words} -- "$current")); return ;;'
        files = [name for name, value in valued if value.is_file]
        if files:
            yield f'                {"|".join(files)}) _icekeep_files "$current"; return ;;'
        free = [name for name, value in valued if not value.words and not value.is_file]
        if free:
            yield f"                {'|'.join(free)}) return ;;"
        yield "            esac"
    if any(value.is_file for value in command.values):
        yield "            if [[ $current != -* ]]; then"
        yield '                _icekeep_files "$current"; return'
        yield "            fi"


def _zsh(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield from (
        "#compdef icekeep",
        "# Tab completion of icekeep for zsh, made by `icekeep completion zsh`.",
        "_icekeep() {",
        "    local command=",
        "    local -a next",
        "    if (( CURRENT > 2 )); then",
        "        command=$words[2]",
        "        shift words",
        "        (( CURRENT-- ))",
        "    fi",
        "    case $command in",
        f"        {'|'.join(one.name for one in commands if one.name and one.next_words)})",
        "            if (( CURRENT > 2 )); then",
        '                command="$command $words[2]"',
        "                shift words",
        "                (( CURRENT-- ))",
        "            fi ;;",
        "    esac",
        "    case $command in",
    )
    for command in commands:
        yield f"        {'|'.join(map(shlex.quote, command.spellings))})"
        if command.next_words:
            yield "            next=("
            for word, summary in command.next_words.items():
                yield f"                {shlex.quote(f'{word}:{summary}')}"
            yield "            )"
            yield "            [[ $PREFIX == -* ]] || _describe -t commands command next"
        specs = [*map(_zsh_flag, command.flags), *map(_zsh_value, command.values)]
        if specs:
            yield "            _arguments \\"
            yield from (f"                {shlex.quote(spec)} \\" for spec in specs[:-1])
            yield f"                {shlex.quote(specs[-1])}"
        yield "            ;;"
    yield from (
        "    esac",
        "}",
        "# As a file of $fpath it is the function's body; it can be sourced as well.",
        'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _icekeep "$@"; else compdef _icekeep icekeep; fi',
    )


def _zsh_flag(flag: _Flag) -> str:
    text = f"[{_escaped(flag.help, '[]')}]"
    repeats = "*" if flag.repeats else ""
    return (
        f"{repeats}{flag.name}{text}" if flag.value is None else f"{repeats}{flag.name}={text}{_zsh_value(flag.value)}"
    )


def _zsh_value(value: _Value) -> str:
    action = f"({' '.join(value.words)})" if value.words else "_files" if value.is_file else " "
    return f"{':' if value.is_required else '::'}{_escaped(value.shown, ':')}:{action}"


def _escaped(text: str, special: str) -> str:
    return "".join(f"\\{one}" if one in f"\\{special}" else one for one in text)


def _fish(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield from (
        "# Tab completion of icekeep for fish, made by `icekeep completion fish`.",
        "function __icekeep_words",
        "    set -l given (commandline -opc)",
        "    # A job goes by its name with dashes, too.",
        "    string replace -a -- - _ $given[2..]",
        "end",
        "# Whether these words have been given, and the next one is to come.",
        "function __icekeep_next",
        "    set -l given (__icekeep_words)",
        '    test "$given" = "$argv"',
        "end",
        "# Whether the command is this one.",
        "function __icekeep_in",
        "    set -l given (__icekeep_words)",
        "    set -l count (count $argv)",
        '    test "$given[1..$count]" = "$argv"',
        "end",
        "complete -c icekeep -f",
    )
    for command in commands:
        name = command.name.replace("-", "_")
        is_next = f"complete -c icekeep -n {_fish_quoted(f'__icekeep_next {name}'.strip())}"
        for word, summary in command.next_words.items():
            yield f"{is_next} -a {word} -d {_fish_quoted(summary)}"
        for value in command.values[:1]:
            if value.words or value.is_file:
                yield f"{is_next} {_fish_value(value)}"
        on = is_next if command.next_words else f"complete -c icekeep -n {_fish_quoted(f'__icekeep_in {name}')}"
        for flag in command.flags:
            value_words = "" if flag.value is None else f" -r {_fish_value(flag.value)}"
            yield f"{on} -l {flag.name[2:]}{value_words} -d {_fish_quoted(flag.help)}"


def _fish_value(value: _Value) -> str:
    return f"-f -a {_fish_quoted(' '.join(value.words))}" if value.words else "-F" if value.is_file else "-f"


def _fish_quoted(text: str) -> str:
    return "'" + _escaped(text, "'") + "'"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""What makes the lines of the script of each shell."""
