import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * Iceberg's JDBC catalog, in which the next commit of this process can be held right before it swaps the metadata.
 *
 * <p>Where its job is cancelled meanwhile, it is never made.
 */
public final class HeldCatalog extends JdbcCatalog {
  private static CompletableFuture<Void> held;
  private static CompletableFuture<Void> released;

  /** Holds the next commit. */
  static synchronized void hold() {
    held = new CompletableFuture<>();
    released = new CompletableFuture<>();
  }

  /** Done when a commit is held. */
  static synchronized CompletableFuture<Void> held() {
    return held;
  }

  /** Lets it go. */
  static synchronized void release() {
    if (released != null) {
      released.complete(null);
    }
  }

  private static synchronized CompletableFuture<Void> taken() {
    if (held == null || held.isDone()) {
      return CompletableFuture.completedFuture(null);
    }
    held.complete(null);
    return released;
  }

  private static void await() {
    try {
      taken().get();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("the job was cancelled before it could commit", error);
    } catch (ExecutionException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier identifier) {
    return new HeldOperations(super.newTableOps(identifier));
  }

  private static final class HeldOperations implements TableOperations {
    private final TableOperations operations;

    HeldOperations(TableOperations operations) {
      this.operations = operations;
    }

    @Override
    public void commit(TableMetadata base, TableMetadata metadata) {
      await();
      operations.commit(base, metadata);
    }

    @Override
    public TableMetadata current() {
      return operations.current();
    }

    @Override
    public TableMetadata refresh() {
      return operations.refresh();
    }

    @Override
    public FileIO io() {
      return operations.io();
    }

    @Override
    public EncryptionManager encryption() {
      return operations.encryption();
    }

    @Override
    public String metadataFileLocation(String name) {
      return operations.metadataFileLocation(name);
    }

    @Override
    public LocationProvider locationProvider() {
      return operations.locationProvider();
    }

    @Override
    public TableOperations temp(TableMetadata metadata) {
      return operations.temp(metadata);
    }

    @Override
    public long newSnapshotId() {
      return operations.newSnapshotId();
    }

    @Override
    public boolean requireStrictCleanup() {
      return operations.requireStrictCleanup();
    }
  }
}
