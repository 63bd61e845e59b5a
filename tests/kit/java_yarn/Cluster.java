import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LocalDirsHandlerService;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.nodemanager.ResourceView;
import org.apache.hadoop.yarn.server.nodemanager.webapp.WebServer;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppEvent;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppEventType;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;

/**
 * A ResourceManager and a NodeManager; writes the configuration of their clients, and ends with its standard input.
 *
 * <p>Hadoop's MiniYARNCluster is the same two, but asks for JUnit.
 */
public final class Cluster {
  private static final String[] ADDRESSES = {
    "resourcemanager.address",
    "resourcemanager.admin.address",
    "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address",
    "resourcemanager.webapp.address",
    "nodemanager.address",
    "nodemanager.localizer.address",
    "nodemanager.webapp.address",
    "nodemanager.collector-service.address"
  };

  /** Arguments: a directory, the default file system, and the NodeManager's memory in MB. */
  public static void main(String[] arguments) {
    try {
      run(arguments);
    } catch (Throwable error) {
      // Threads of what has started by now would keep the process.
      error.printStackTrace();
      System.exit(1);
    }
  }

  private static void run(String[] arguments) throws Exception {
    File home = new File(arguments[0]);
    Configuration configuration = new YarnConfiguration();
    for (String address : ADDRESSES) {
      configuration.set("yarn." + address, "127.0.0.1:0");
    }
    configuration.set("fs.defaultFS", arguments[1]);
    configuration.set("yarn.nodemanager.resource.memory-mb", arguments[2]);
    configuration.set("yarn.nodemanager.resource.cpu-vcores", "8");
    configuration.set("yarn.nodemanager.local-dirs", new File(home, "local").getPath());
    configuration.set("yarn.nodemanager.log-dirs", new File(home, "logs").getPath());
    configuration.set("yarn.scheduler.minimum-allocation-mb", "128");
    configuration.set(
        "yarn.resourcemanager.scheduler.class",
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
    configuration.set("yarn.resourcemanager.am.max-attempts", "1");
    // An application waits for heartbeats several times.
    configuration.set("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", "100");
    // A JVM reserves far more than it uses, and a disk of tests may be nearly full.
    configuration.set("yarn.nodemanager.vmem-check-enabled", "false");
    configuration.set("yarn.nodemanager.pmem-check-enabled", "false");
    configuration.set("yarn.nodemanager.disk-health-checker.enable", "false");
    configuration.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100");
    ResourceManager manager = new WithoutPages();
    manager.init(configuration);
    manager.start();
    NodeManager node = new NodeWithoutPages();
    node.init(new YarnConfiguration(manager.getConfig()));
    node.start();
    while (manager.getRMContext().getRMNodes().isEmpty()) {
      Thread.sleep(20);
    }
    write(manager.getConfig(), home, "yarn-site.xml");
    Configuration core = new Configuration(false);
    core.set("fs.defaultFS", arguments[1]);
    write(core, home, "core-site.xml");
    HttpServer rest = rest(manager);
    Files.writeString(new File(home, "rest").toPath(), "http://127.0.0.1:" + rest.getAddress().getPort());
    System.out.println("ready");
    while (System.in.read() != -1) {}
    rest.stop(0);
    node.stop();
    manager.stop();
    System.exit(0);
  }

  private static void write(Configuration configuration, File home, String name) throws Exception {
    File directory = new File(home, "conf");
    directory.mkdirs();
    try (OutputStream out = new FileOutputStream(new File(directory, name))) {
      configuration.writeXml(out);
    }
  }

  /** Of the ResourceManager's REST API what a scheduler asks; its own is served by the web pages that are left out here. */
  private static HttpServer rest(ResourceManager manager) throws Exception {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext("/ws/v1/cluster/", exchange -> answer(manager, exchange));
    server.start();
    return server;
  }

  private static void answer(ResourceManager manager, HttpExchange exchange) throws IOException {
    String[] path = exchange.getRequestURI().getPath().substring("/ws/v1/cluster/".length()).split("/");
    RMApp app = path.length < 2 ? null : manager.getRMContext().getRMApps().get(ApplicationId.fromString(path[1]));
    int status = 200;
    String body = "{}";
    if (path.length > 1 && app == null) {
      status = 404;
    } else if (exchange.getRequestMethod().equals("PUT")) {
      RMAppEvent kill = new RMAppEvent(app.getApplicationId(), RMAppEventType.KILL, "killed by somebody who asked over REST");
      manager.getRMContext().getDispatcher().getEventHandler().handle(kill);
      status = 202;
    } else if (app != null) {
      body =
          String.format(
              "{\"app\": {\"state\": \"%s\", \"finalStatus\": \"%s\", \"diagnostics\": %s}}",
              app.createApplicationState(), app.getFinalApplicationStatus(), quoted(app.getDiagnostics().toString()));
    }
    byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, bytes.length);
    exchange.getResponseBody().write(bytes);
    exchange.close();
  }

  private static String quoted(String text) {
    StringBuilder quoted = new StringBuilder("\"");
    for (char one : text.toCharArray()) {
      quoted.append(one < ' ' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : one);
    }
    return quoted.append('"').toString();
  }

  /** Its web pages ask for more jars, and nobody looks at them. */
  private static final class WithoutPages extends ResourceManager {
    @Override
    protected void startWepApp() {}
  }

  private static final class NodeWithoutPages extends NodeManager {
    @Override
    protected WebServer createWebServer(
        Context context, ResourceView view, ApplicationACLsManager acls, LocalDirsHandlerService directories) {
      return new WebServer(context, view, acls, directories) {
        @Override
        protected void serviceStart() {}

        @Override
        protected void serviceStop() {}
      };
    }
  }
}
