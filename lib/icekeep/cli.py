"""The command line: `icekeep COMMAND ...` and the scripts in `jobs/`, with the same flags, output and exit statuses.

Help, the version and most mistakes are answered with what is loaded here: neither Spark nor Arrow, and no configuration.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.console.streams import open_closed_streams
from icekeep.operations.jobs import JOBS, SEAMS, Seams
from icekeep.processes import interrupted_early
from icekeep.runtime import SYSTEM, Runtime
from icekeep.secrets import remember
from icekeep.settings import Job


def entry_point() -> None:
    """The console script of environments that were made before `__main__` had it."""
    sys.exit(main())


def main(
    argv: Sequence[str] | None = None,
    job: str | None = None,
    *,
    jobs: Mapping[str, Job] = JOBS,
    seams: Seams = SEAMS,
    runtime: Runtime = SYSTEM,
) -> int:
    """Run a command line to its end and return the exit status.

    Args:
        argv: the words after the command's own name; by default those of this process, which is then the command's alone.
        job: the job or command whose script this is; `None` for the `icekeep` command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    remember(os.environ)
    open_closed_streams()
    command: Command | BaseException
    try:
        command = parse_command(words, job, runtime.now_ms())
    except SystemExit as done:
        # Help or the version was printed.
        return int(done.code or 0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - each failure gets its status where commands run
        command = error
    try:
        from icekeep.operations.process_run import ProcessRun
    except KeyboardInterrupt:
        return interrupted_early()
    return ProcessRun(words, job, jobs, seams, runtime, owns_process=argv is None).run(command)
