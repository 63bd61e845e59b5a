"""A browser that is asked to show a page, as `--open` asks."""

import subprocess
import sys
import webbrowser
from pathlib import Path

from icekeep.events import Listener, Warned


def open_in_browser(page: Path, listener: Listener, shown: str = "") -> bool:
    """Ask for a browser, in a process that nobody waits for: one without windows would take the terminal, and keep it.

    Args:
        page: a file. Its path is an argument of processes meanwhile, which every user of the machine can read.
        shown: what a warning calls the page; by default its path.

    Returns whether one was asked; where there is none, the listener is warned.
    """
    try:
        webbrowser.get()
    except webbrowser.Error:
        listener.on(Warned(f"there is no browser that could show {shown or repr(str(page))}"))
        return False
    nowhere = subprocess.DEVNULL
    # Isolated: else a `webbrowser.py` in the current directory would be run, whoever has put it there.
    words = [sys.executable, "-I", "-m", "webbrowser", page.absolute().as_uri()]
    subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    return True
