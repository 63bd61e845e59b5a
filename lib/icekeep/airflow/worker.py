"""A command of icekeep in a process beside Airflow's task, which is ended with it."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from icekeep.airflow.installation import Installation

PATIENCE_S = 45
"""How long a process that was asked to end may take: a job ends at once, but for a commit that is under way. Airflow kills the
task after a minute (`core.killed_task_cleanup_time`).
"""


class Worker:
    """One command; what it prints goes on line by line."""

    def __init__(self, installation: Installation, words: Sequence[str], say: Callable[[str], None]) -> None:
        self._installation, self._words, self._say = installation, words, say
        self._process: subprocess.Popen[str] | None = None

    def run(self, answer: Path | None = None) -> int:
        """Run it to its end and return its exit status, below 0 for a signal; whatever interrupts this ends the process.

        Args:
            answer: the file that gets what it prints on stdout; by default that goes on line by line as well.

        Raises:
            OSError: it cannot be started.
        """
        with nullcontext() if answer is None else answer.open("wb") as file:
            self._process = process = subprocess.Popen(
                self._installation.command(self._words),
                env=self._installation.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if file is None else file,
                stderr=subprocess.STDOUT if file is None else subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        said = process.stdout or process.stderr
        assert said is not None
        try:
            with said as lines:
                for line in lines:
                    self._say(line.rstrip())
            return process.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask the process to end, then kill what is left of it and of those that it has started."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
