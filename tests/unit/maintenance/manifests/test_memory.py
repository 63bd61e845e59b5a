"""How much memory a rewrite on the driver takes: not what the entries take.

trino #24794, #21180 and #26323: rewriting manifests took a coordinator of 64 to 125 GB down.
"""

import json
import subprocess
import sys
import textwrap
from hashlib import blake2b
from pathlib import Path

import pytest

from icekeep.spec.avro import packer
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from kit.manifests import DAY, data_file, spec_and_schema

MIB = 1 << 20
MANIFESTS_COUNT, BLOCKS_A_MANIFEST = 8, 800

SCRIPT = """
    import json, sys, threading
    from pathlib import Path
    from msgspec.structs import replace
    from icekeep.maintenance.manifests import held_records
    from icekeep.planning.decoder import ManifestDecoder
    from icekeep.planning.transcode import RecordsTask
    from icekeep.spec.manifests.structs import ManifestFile
    from icekeep.storage.open import open_storage
    from kit.manifests import target_of, writer_of

    def anonymous():
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

    directory, held_records._HELD_BYTES = sys.argv[1], int(sys.argv[2])
    storage, target = open_storage({}), target_of()
    rows = [
        ManifestFile(manifest_path=f"file:{path}", manifest_length=path.stat().st_size, partition_spec_id=0,
                     added_snapshot_id=1, sequence_number=1, min_sequence_number=1)
        for path in sorted(Path(directory).glob("m*.avro"))
    ]
    task = RecordsTask(manifests=tuple(rows), numbers={row.manifest_path: n for n, row in enumerate(rows)},
                       target=target, storage=storage, decoder=ManifestDecoder.DATAFUSION)
    writer = replace(writer_of(target, storage, codec="zstd"), directory=f"file:{directory}")
    held_records.rewritten_here(replace(task, manifests=task.manifests[:1]), writer, foresees=True)
    before, peak, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    manifests, _ = held_records.rewritten_here(task, writer)
    done.set()
    watcher.join()
    count = sum(manifest.existing_files_count for manifest in manifests)
    print(json.dumps({"entries": count, "taken": peak[0] - before}))
"""


def write_large_manifests(directory: Path) -> tuple[int, int]:
    """Manifests of blocks that are all alike, so that they are made in no time; how many entries, and bytes of records."""
    spec, schema = spec_and_schema(DAY)
    encoder = EntryEncoder(DAY, 2)
    days = [19_000 + number % 30 for number in range(200)]
    entries = [
        ManifestEntry(
            status=Status.EXISTING,
            snapshot_id=1,
            sequence_number=1,
            file_sequence_number=1,
            data_file=data_file(
                partition=(day,),
                lower_bounds={n: blake2b(b"%d %d" % (day, n), digest_size=16).digest() for n in range(1, 13)},
            ),
        )
        for day in days
    ]
    payload = b"".join(map(encoder.encode, entries))
    pack = packer("zstandard")
    packed = pack(payload)
    for number in range(MANIFESTS_COUNT):
        builder = ManifestBuilder(
            f"m{number}", encoder, spec, schema, format_version=2, codec="zstd", pack=lambda _: packed
        )
        for _ in range(BLOCKS_A_MANIFEST):
            builder.add_block(payload, len(entries), len(entries), 1)
        builder.add_partitions((day,) for day in days)
        (directory / f"m{number}.avro").write_bytes(builder.finish(1)[0])
    blocks = MANIFESTS_COUNT * BLOCKS_A_MANIFEST
    return blocks * len(entries), blocks * len(payload)


def rewritten(directory: Path, max_held: int) -> dict[str, int]:
    """What a process says that rewrites the manifests: how many entries, and how many bytes it took for that."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory), str(max_held)]
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONPATH": path})
    said: dict[str, int] = json.loads(done.stdout)
    return said


@pytest.mark.nightly
@pytest.mark.process
def test_entries_take_no_more_memory_than_is_set_aside_for_them(tmp_path: Path) -> None:
    count, size_bytes = write_large_manifests(tmp_path)
    assert size_bytes > 350 * MIB
    said = rewritten(tmp_path, 32 * MIB)
    assert said["entries"] == count
    assert said["taken"] < 180 * MIB
