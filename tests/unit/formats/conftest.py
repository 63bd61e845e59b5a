import pyarrow as pa
import pytest


@pytest.fixture(autouse=True)
def _threads_as_before():
    """A task sets Arrow to one thread for the process, which other tests share."""
    before = pa.cpu_count(), pa.io_thread_count()
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])
