import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.types.Row;

/**
 * The source of a job: it reads a log of rows that this process holds, from an offset that checkpoints hold.
 *
 * <p>So a job that starts from an old checkpoint reads again what came after it, as one that reads from Kafka does.
 */
final class Feed implements SourceFunction<Row>, CheckpointedFunction {
  private static final Map<String, Log> LOGS = new ConcurrentHashMap<>();

  private final String name;
  private volatile boolean isRunning = true;
  private long offset;
  private transient ListState<Long> state;

  /** A reader of the log of that name. */
  Feed(String name) {
    this.name = name;
  }

  static Log log(String name) {
    return LOGS.computeIfAbsent(name, unused -> new Log());
  }

  @Override
  public void run(SourceContext<Row> out) throws Exception {
    Log log = log(name);
    log.isRead(offset);
    while (isRunning) {
      Row row = log.next(offset);
      if (row == null) {
        continue;
      }
      synchronized (out.getCheckpointLock()) {
        out.collect(row);
        offset++;
      }
      log.isRead(offset);
    }
  }

  @Override
  public void cancel() {
    isRunning = false;
    log(name).wake();
  }

  @Override
  public void snapshotState(FunctionSnapshotContext context) throws Exception {
    state.update(List.of(offset));
  }

  @Override
  public void initializeState(FunctionInitializationContext context) throws Exception {
    state = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("offset", Long.class));
    for (long held : state.get()) {
      offset = held;
    }
  }

  /** Rows in the order in which they came, and how far the job has read. */
  static final class Log {
    private final List<Row> rows = new ArrayList<>();
    private long read;

    synchronized void add(List<Row> more) {
      rows.addAll(more);
      notifyAll();
    }

    synchronized long size() {
      return rows.size();
    }

    /** The row at an offset; null where somebody woke the reader before there was one. */
    private synchronized Row next(long offset) throws InterruptedException {
      if (offset >= rows.size()) {
        // The job may have been cancelled right before.
        wait(100);
      }
      return offset < rows.size() ? rows.get((int) offset) : null;
    }

    private synchronized void isRead(long offset) {
      read = offset;
      notifyAll();
    }

    /** Nothing is read, until a job starts to read. */
    synchronized void forget() {
      read = -1;
    }

    private synchronized void wake() {
      notifyAll();
    }

    /** Waits until all is read, for some milliseconds at most; whether it is. */
    synchronized boolean awaitRead(long milliseconds) throws InterruptedException {
      if (read < rows.size()) {
        wait(milliseconds);
      }
      return read >= rows.size();
    }
  }
}
