"""One command of this process, from its words to an exit status: it is run, and its answer is delivered.

stdout holds the result and nothing else, with `--output json` exactly one JSON object, also for an error; progress, logs
and the one line of an error go to stderr. This is the only place that prints a result and decides an exit status.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec

from icekeep.errors import commands_reading, one_line, shown_command
from icekeep.formats.machine import (
    LIMITED_POOL,
    POOL_VARIABLE,
    choose_pool,
    imported_with,
    is_limited,
    leave_pandas_out,
)
from icekeep.operations.arguments import (
    Command,
    OutputOptions,
    named_command,
    output_options,
)
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.configuration.file import config_words
from icekeep.operations.console.logs import configure_logs, only_log_lines, say_error, say_traceback
from icekeep.operations.console.looks import JSON
from icekeep.operations.console.output import (
    format_json,
    require_directory,
    require_new_file,
    write_result_file,
    write_text,
)
from icekeep.operations.console.streams import separate_stderr
from icekeep.operations.console.values import plain_values
from icekeep.operations.interrupts import Interrupted, Interrupts, interrupts
from icekeep.operations.job_run import JobRun
from icekeep.operations.jobs import Seams, resolve
from icekeep.operations.listeners import chosen_format, listeners, notify, telemetry_settings
from icekeep.operations.outcomes import FAILURE, HELD, PARTIAL, RunState, run_failure
from icekeep.operations.run_context import RunContext
from icekeep.operations.runbooks import UNDELIVERED
from icekeep.runs import INTERRUPTED
from icekeep.runtime import Runtime
from icekeep.settings import Job


def start_lean() -> None:
    """Prepare a process that belongs to the command alone, which will work on data.

    NumPy comes with a library of linear algebra that starts a thread for each processor when it is loaded, and these spin for a
    while: a twentieth of the processor time of a small job. No job has matrices that would need them.
    """
    # Arrow is loaded with the allocator that it keeps: some of it never asks again which one was chosen.
    limited = imported_with("pyarrow", POOL_VARIABLE, LIMITED_POOL) if is_limited() else nullcontext()
    with imported_with("numpy", "OPENBLAS_NUM_THREADS", "1"), limited:
        import pyarrow  # noqa: F401 - imports NumPy too
    leave_pandas_out()
    choose_pool()


_ON_MATCHING = "icekeep.operations.commands.matching:run_on_matching"
_SHOWS_MATCHING = "icekeep.operations.shown.results:matching_shown"


class CommandResult(msgspec.Struct, frozen=True):
    """What a command answers: an exit status and a document, which is shown under a title or is about an error.

    `may_have_changed`: whether the command is one that changes tables, and has ended well. `for_people` makes what is printed as
    tables; `None`: that is the document's result. `text` makes what is printed as it is, in the place of both. They are called
    where the answer is delivered: what fails there does not hide what was committed.
    """

    status: int
    document: Mapping[str, Any]
    title: str = ""
    error: str = ""
    may_have_changed: bool = False
    for_people: Callable[[], Mapping[str, Any]] | None = None
    text: Callable[[], str] | None = None


class ProcessRun:
    """Runs one command of this process.

    Args:
        words: of the command line.
        job: the job or command whose script this is; `None` for the `icekeep` command.
        owns_process: whether the process belongs to the command alone.
    """

    def __init__(
        self,
        words: Sequence[str],
        job: str | None,
        jobs: Mapping[str, Job],
        seams: Seams,
        runtime: Runtime,
        *,
        owns_process: bool,
    ) -> None:
        self._jobs, self._seams, self._runtime, self._owns_process = jobs, seams, runtime, owns_process
        self._asked_for = job or named_command(words)
        self._output = output_options(words)
        self._state = RunState()

    def run(self, command: Command | BaseException) -> int:
        """Run a command to its end, or tell of the mistake in its command line; returns the exit status."""
        separate_stderr()
        output, runtime = self._output, self._runtime
        settings = telemetry_settings(output)
        log_format = chosen_format(output, settings)
        configure_logs(verbose=output.verbose, log_format=log_format)
        answer: CommandResult | None = None
        as_lines = only_log_lines() if log_format == JSON else nullcontext()
        with interrupts() as taken, as_lines, commands_reading(config_words(output.conf)):
            try:
                if isinstance(command, BaseException):
                    raise command
                if command.result_file is not None:
                    require_directory(command.result_file)
                if command.plan_out is not None:
                    require_new_file(command.plan_out, "plan")
                seams = self._seams
                name = command.name
                works_on_data = name in self._jobs or (name in COMMANDS and COMMANDS[name].may_start_spark)
                if self._owns_process and works_on_data:
                    start_lean()
                    seams = msgspec.structs.replace(seams, build_session=seams.build_own_session or seams.build_session)
                with listeners(command, settings, log_format, runtime) as listener:
                    context = RunContext(
                        seams=seams, listener=listener, interrupts=taken, runtime=runtime, state=self._state
                    )
                    answer = self._answer(command, context)
                    taken.spare_delivery()
            except (Exception, KeyboardInterrupt, Interrupted) as failure:  # noqa: BLE001 - every failure gets its status here
                taken.spare_delivery()
                # When the work is done, a signal ends no more than the wait for those who are told of it.
                answer = answer or self._failure(failure, taken)
                if output.verbose:
                    say_traceback(failure)
            status = _deliver(answer, output)
            if not isinstance(command, BaseException):
                notify(command, settings, log_format, answer.document, status, runtime)
            return status

    def _answer(self, command: Command, context: RunContext) -> CommandResult:
        if command.name in COMMANDS:
            from icekeep.operations.command_run import CommandRun

            spec = COMMANDS[command.name]
            outcome = CommandRun(command, spec, context).outcome()
            changes, shows, texts = spec.changes_tables, spec.for_people, spec.texts
        else:
            job = self._jobs[command.name]
            if command.match is None:
                outcome, shows = JobRun(command, job, context).outcome(), job.for_people
            else:
                outcome, shows = resolve(_ON_MATCHING)(command, job, context), _SHOWS_MATCHING
            changes, texts = job.plan is not None, {}
        about = " ".join(filter(None, (outcome.job, outcome.table or command.match)))
        words = f"{about}: {outcome.status}" + (", nothing was changed" if outcome.dry_run else "")
        if outcome.refusal:
            words += f"; the run itself would be refused: {outcome.refusal}"
        if outcome.plan:
            words += f"; the plan is in {outcome.plan.path}, and `{shown_command('apply', outcome.plan.path)}` carries it out"
        for_people: Callable[[], Mapping[str, Any]] | None = None
        if shows is not None and outcome.status != HELD:
            more = () if command.name in COMMANDS or not outcome.table else (outcome.table,)
            for_people = partial(_resolved, shows, outcome.result, *more)
        text = partial(_resolved, texts[command.output].make, outcome.result) if command.output in texts else None
        may_have_changed = changes and not outcome.dry_run and not command.arguments.get("lists")
        # After an interrupt of which the outcome tells what was done, the status is what the signal asks for.
        number = context.interrupts.signal if outcome.status == INTERRUPTED else None
        return CommandResult(
            outcome.exit_status if number is None else 128 + number,
            plain_values(outcome),
            title=words,
            may_have_changed=may_have_changed,
            for_people=for_people,
            text=text,
        )

    def _failure(self, failure: BaseException, taken: Interrupts) -> CommandResult:
        ended = run_failure(failure, taken.signal, self._state)
        document = self._state.error_document(self._asked_for, ended, self._runtime)
        return CommandResult(ended.exit_status, plain_values(document), error=ended.line)


def _resolved(function: str, *values: Any) -> Any:
    """Resolved where the answer is delivered: what fails there does not undo what was committed."""
    return resolve(function)(*values)


def _deliver(answer: CommandResult, output: OutputOptions) -> int:
    """Put the answer where it was wanted; what cannot be delivered makes a success a failure.

    That of a command which may have committed is one in part: exit status 1 says that nothing was.
    """
    status = answer.status
    if answer.error:
        kind = answer.document["error"]["kind"]
        say_error(answer.error, {"kind": kind, "exit_status": answer.status})
    try:
        if output.result_file is not None:
            write_result_file(output.result_file, answer.document)
    except Exception as failure:  # noqa: BLE001 - the answer must still reach stdout
        status = answer.status or _undelivered(answer, failure)
    try:
        _print(answer, output)
        sys.stdout.flush()
    except OSError as failure:
        # Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that has gone has seen enough.
        if not isinstance(failure, BrokenPipeError):
            status = _undelivered(answer, failure)
    except Exception as failure:  # noqa: BLE001 - what was committed stays, however it is shown
        status = _undelivered(answer, failure)
        if output.verbose:
            say_traceback(failure)
    return status


def _undelivered(answer: CommandResult, failure: Exception) -> int:
    """Say that the answer did not get where it was wanted, and what the status is therefore."""
    done = "; the command itself is done, and what it committed stays" if answer.may_have_changed else ""
    status = answer.status or (PARTIAL if answer.may_have_changed else FAILURE)
    say_error(f"{one_line(failure)}{done}", {"kind": UNDELIVERED, "exit_status": status})
    return status


def _print(answer: CommandResult, output: OutputOptions) -> None:
    if output.format == "json":
        print(format_json(answer.document, sys.stdout.encoding))
    elif answer.text is not None:
        write_text(answer.text(), sys.stdout)
    elif not answer.error:
        from icekeep.operations.console.terminal import print_tables

        shown = answer.document["result"] if answer.for_people is None else answer.for_people()
        print_tables(answer.title, shown, sys.stdout, output.look)
