import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.iceberg.IcebergBuild;

/** The cluster of this process, and the catalogs that its sessions know. */
final class Cluster {
  private static final int SLOTS = 16;
  private static final Duration NEVER = Duration.ofDays(7);

  private final MiniCluster mini;
  private final Configuration settings = new Configuration();
  private final Map<String, Map<String, String>> catalogs = new LinkedHashMap<>();
  private final Path checkpoints;

  /** Starts it; checkpoints lie below the directory, and stay when a job is cancelled. */
  Cluster(String directory) throws Exception {
    checkpoints = Path.of(directory).toAbsolutePath().resolve("checkpoints");
    settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
    settings.set(
        CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
    settings.set(CheckpointingOptions.MAX_RETAINED_CHECKPOINTS, 100);
    // A checkpoint is made when a test asks for one, and a job that fails is over.
    settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, NEVER);
    settings.set(RestartStrategyOptions.RESTART_STRATEGY, "disable");
    settings.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
    settings.set(RestOptions.ADDRESS, "127.0.0.1");
    settings.set(RestOptions.BIND_PORT, "0");
    settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(64));
    settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(64));
    settings.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(128));
    mini =
        new MiniCluster(
            new MiniClusterConfiguration.Builder()
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(SLOTS)
                .setConfiguration(settings)
                .build());
    mini.start();
  }

  Map<String, String> versions() {
    return Map.of("flink", EnvironmentInformation.getVersion(), "iceberg", IcebergBuild.version());
  }

  /** Knows a catalog from now on, by the properties of Iceberg's. */
  String open(JsonNode request) {
    Map<String, String> properties = new HashMap<>();
    request.required("properties").fields().forEachRemaining(item -> properties.put(item.getKey(), item.getValue().asText()));
    catalogs.put(request.required("catalog").asText(), properties);
    return "done";
  }

  /** What a job is made with. */
  StreamExecutionEnvironment environment(int parallelism) {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
    return environment.setParallelism(parallelism);
  }

  /** A session of SQL that knows the catalogs; its jobs are run by {@link #run}. */
  StreamTableEnvironment session(StreamExecutionEnvironment environment, boolean isStreaming) {
    EnvironmentSettings.Builder mode = EnvironmentSettings.newInstance();
    EnvironmentSettings made = (isStreaming ? mode.inStreamingMode() : mode.inBatchMode()).build();
    StreamTableEnvironment session = StreamTableEnvironment.create(environment, made);
    session.getConfig().set("table.local-time-zone", "UTC");
    catalogs.forEach(
        (name, properties) -> {
          String options =
              properties.entrySet().stream()
                  .map(item -> "'" + item.getKey() + "' = '" + item.getValue().replace("'", "''") + "'")
                  .collect(Collectors.joining(", "));
          session.executeSql("CREATE CATALOG `" + name + "` WITH (" + options + ")");
        });
    return session;
  }

  /** Starts a job, from a checkpoint or a savepoint where one is given. */
  JobID run(StreamExecutionEnvironment environment, String from) throws Exception {
    JobGraph graph = environment.getStreamGraph().getJobGraph();
    if (!from.isEmpty()) {
      graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(from, false));
    }
    mini.submitJob(graph).get();
    return graph.getJobID();
  }

  /** What becomes of a job, when it ends. */
  CompletableFuture<JobResult> result(JobID job) {
    return mini.requestJobResult(job);
  }

  /** Waits until all tasks of a job run: none takes part in a checkpoint before. */
  void awaitRunning(JobID job) throws Exception {
    while (!result(job).isDone()) {
      boolean isRunning = true;
      for (AccessExecutionVertex vertex : mini.getExecutionGraph(job).get().getAllExecutionVertices()) {
        isRunning &= vertex.getExecutionState() == ExecutionState.RUNNING;
      }
      if (isRunning) {
        return;
      }
      Thread.sleep(5);
    }
  }

  MiniCluster mini() {
    return mini;
  }

  /** Where a checkpoint lies. */
  String checkpointPath(JobID job, long number) {
    return checkpoints.resolve(job.toString()).resolve("chk-" + number).toUri().toString();
  }
}
