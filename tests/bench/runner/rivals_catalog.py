"""A REST catalog for rivals that have no catalog of files alone; its tables lie in the layout that all others know."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from kit.rest_server import RestServer


class RivalsCatalog:
    """The catalog, in this process, whose time and memory count for nobody; each rival registers the table that it works on."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._started: RestServer | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def uri(self) -> str:
        """Where it answers, from now on."""
        return self._server.uri

    @property
    def _server(self) -> RestServer:
        if self._started is None:
            directory = self._stack.enter_context(TemporaryDirectory(prefix="bench-rest-"))
            self._started = RestServer(Path(directory))
            self._stack.callback(self._started.close)
        return self._started

    def publish(self, target: Mapping[str, Any]) -> None:
        """Let the files of a table say what the catalog has: a version more, and the hint to it."""
        metadata = Path(target["path"]) / "metadata"
        hint = metadata / "version-hint.text"
        location = self._server.pointers[tuple(target["name"].split("."))]
        last = Path(location.removeprefix("file://"))
        version = int(hint.read_text()) + 1
        if last.name == f"v{version - 1}.metadata.json":
            return
        (metadata / f"v{version}.metadata.json").write_bytes(last.read_bytes())
        hint.write_text(str(version))
