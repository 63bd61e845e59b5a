import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.iceberg.events.CreateSnapshotEvent;
import org.apache.iceberg.events.Listeners;

/** Which checkpoints of which jobs have landed in a table, as the summaries of Flink's snapshots name them. */
final class Commits {
  private static final Map<String, Map<Long, CompletableFuture<Long>>> LANDED = new HashMap<>();

  private Commits() {}

  static void listen() {
    Listeners.register(Commits::note, CreateSnapshotEvent.class);
  }

  /** Done, with the snapshot's id, when a checkpoint of a job has landed. */
  static synchronized CompletableFuture<Long> of(String job, long checkpoint) {
    return LANDED.computeIfAbsent(job, unused -> new HashMap<>()).computeIfAbsent(checkpoint, unused -> new CompletableFuture<>());
  }

  private static void note(CreateSnapshotEvent event) {
    String checkpoint = event.summary().get("flink.max-committed-checkpoint-id");
    if (checkpoint != null) {
      of(event.summary().get("flink.job-id"), Long.parseLong(checkpoint)).complete(event.snapshotId());
    }
  }
}
