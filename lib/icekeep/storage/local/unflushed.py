"""Local files that need not outlive a power cut."""

from icekeep.storage.local.storage import LocalStorage


class UnflushedStorage(LocalStorage):
    """For tables that are made to be looked at: the system flushes their thousands of small files when it likes."""

    def _flush(self, file_descriptor: int) -> None:
        pass

    def _flush_directory(self, directory: str) -> None:
        pass
