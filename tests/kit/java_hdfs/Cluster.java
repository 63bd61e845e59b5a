import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;
import org.apache.hadoop.hdfs.server.datanode.DataNodeFaultInjector;

/** One NameNode and one DataNode in the directory that is given; it obeys lines on its standard input and ends with it. */
public final class Cluster {
  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new HdfsConfiguration();
    configuration.set("dfs.replication", "1");
    // Small batches, so that a listing of a dozen files already takes several.
    configuration.set("dfs.ls.limit", "5");
    DataNodeFaultInjector.set(new Distance());
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(configuration, new File(arguments[0])).numDataNodes(1).build();
    cluster.waitActive();
    DistributedFileSystem files = cluster.getFileSystem();
    System.out.println(cluster.getNameNodePort());
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      obey(files, line);
      System.out.println("done");
    }
    cluster.shutdown();
  }

  private static void obey(DistributedFileSystem files, String line) throws IOException {
    String[] words = line.split(" ");
    switch (words[0]) {
      case "enter-safe-mode" -> files.setSafeMode(SafeModeAction.SAFEMODE_ENTER);
      case "leave-safe-mode" -> files.setSafeMode(SafeModeAction.SAFEMODE_LEAVE);
      case "allow-names" -> files.setQuota(new Path(words[1]), Long.parseLong(words[2]), Long.MAX_VALUE);
      default -> throw new IllegalArgumentException(line);
    }
  }

  /**
   * Keeps the DataNode away from its clients, as a network does. Else its answer to a client is faster than its report to the
   * NameNode: the client asks too early to complete the file, is refused, and waits for half a second before it asks again.
   */
  private static final class Distance extends DataNodeFaultInjector {
    @Override
    public void delaySendingAckToUpstream(String upstreamAddress) throws IOException {
      LockSupport.parkNanos(8_000_000);
    }
  }
}
