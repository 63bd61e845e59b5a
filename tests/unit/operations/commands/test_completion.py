"""Tab completion in the shells themselves: keys are typed on a terminal, and the command says which words it was given."""

import os
import pty
import select
import shutil
import signal
from contextlib import contextmanager

import pytest

from icekeep import cli
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.commands.completion import SCRIPTS, completion

SHOWN = "icekeep() { printf 'given:'; printf ' [%s]' \"$@\"; printf ' end\\n'; }\n"
STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set enable-bracketed-paste off' 'set bell-style none'\nset +o history\n"
        + SHOWN
        + "source ./completion\n",
    ),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D\n" + SHOWN + "source ./completion\n"),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function icekeep; printf 'given:'; printf ' [%s]' $argv; printf ' end\\n'; end\nsource ./completion\n",
    ),
}
TYPED = {
    "doct\t": "[doctor]",
    "rewrite_m\t": "[rewrite_manifests]",
    "ref publ\t--dry\t": "[ref] [publish] [--dry-run]",
    "compact --outp\tjs\t": "[compact] [--output] [json]",
    "report --output h\t": "[report] [--output] [html]",
    "completion z\t": "[completion] [zsh]",
    "rewrite-manifests --sort\tx": "[rewrite-manifests] [--sort-by] [x]",
    "compact --config some\t--dry\t": "[compact] [--config] [some-file.yaml] [--dry-run]",
    "apply some\t--dry\t": "[apply] [some-file.yaml] [--dry-run]",
}
"""What is typed behind `icekeep`, and the words that come of it."""


class Terminal:
    """A shell at a terminal."""

    def __init__(self, descriptor):
        self._descriptor, self.seen = descriptor, ""

    def type(self, keys):
        os.write(self._descriptor, keys.encode())

    def until(self, text, start=0):
        """The text up to the end of this one, behind `start`; a shell that is silent for a minute fails the test."""
        while text not in self.seen[start:]:
            ready, _, _ = select.select([self._descriptor], [], [], 60)
            assert ready, f"no {text!r} in {self.seen[start:]!r}"
            self.seen += os.read(self._descriptor, 65536).decode(errors="replace")
        return self.seen[: self.seen.index(text, start) + len(text)]


@contextmanager
def terminal(shell, directory):
    words, _ = STARTS[shell]
    program = shutil.which(words[0])
    assert program, f"{shell} is not installed; run .ci/setup all"
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "dumb", "PS1": "$ ", "LC_ALL": "C.UTF-8"}
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(program, words, environment)
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


# A bare machine has bash; `.ci/setup all` installs the others.
OTHER_SHELLS = [pytest.param(shell, marks=pytest.mark.nightly) for shell in SCRIPTS if shell != "bash"]


@pytest.mark.parametrize("shell", ["bash", *OTHER_SHELLS])
def test_a_shell_completes_what_is_typed(shell, tmp_path):
    (tmp_path / "some-file.yaml").touch()
    (tmp_path / "completion").write_text(completion(shell=shell).script)
    (tmp_path / "start").write_text(STARTS[shell][1])
    with terminal(shell, tmp_path) as at:
        at.type("source ./start; printf 're%s\\n' ady\r")
        at.until("ready")
        for keys, words in TYPED.items():
            start = len(at.seen)
            at.type(f"icekeep {keys}\r")
            answer = at.until(" end", start)[start:]
            # zsh joins a flag and its value.
            assert answer.rpartition("given: ")[2].replace("=", "] [") == f"{words} end", keys


@pytest.mark.parametrize("shell", [*SCRIPTS])
def test_each_command_and_flag_is_in_the_script(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == completion(shell=shell).script
    for name in ["compact", "check", *COMMANDS]:
        assert name.split()[-1] in script
    dashes = "-l " if shell == "fish" else "--"
    assert all(f"{dashes}{flag}" in script for flag in ("where", "max-ref-age", "result-file", "wap-id"))


def test_the_shells_are_those_of_the_command():
    assert COMMANDS["completion"].settings[0].choices == tuple(SCRIPTS)


def test_another_shell_is_refused_with_those_that_there_are(capsys):
    assert cli.main(["completion", "ksh"]) == 2
    assert "invalid choice: 'ksh' (choose from 'bash', 'zsh', 'fish')" in capsys.readouterr().err
