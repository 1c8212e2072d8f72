import io.github.unslow.lettuce.UnslowRedisClusterClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import java.io.InputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Properties;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;

/** Jedis with its pool of eight, Lettuce with its one shared connection to each node. See README.md. */
public class Driver {
  interface Commands {
    void set(String key, String value);

    void get(String key);
  }

  static volatile boolean stopped;

  public static void main(String[] args) throws Exception {
    String library = args[0];
    String host = args[1];
    int port = Integer.parseInt(args[2]);
    int threads = Integer.parseInt(args[3]);
    long every = Long.parseLong(args[4]) * 1000;
    int timeout = Integer.parseInt(args[5]);
    String[] keys = args[6].split(",");
    Commands commands = library.equals("jedis") ? jedis(host, port, timeout) : lettuce(library, host, port, timeout);
    commands.set(keys[0], "v");
    PrintStream out = System.out;
    String artifact = library.equals("jedis") ? "redis.clients/jedis" : "io.lettuce/lettuce-core";
    Properties of = new Properties();
    try (InputStream in = Driver.class.getResourceAsStream("/META-INF/maven/" + artifact + "/pom.properties")) {
      if (in != null) of.load(in);
    }
    out.println("ready " + library + " " + of.getProperty("version", "of unknown version"));
    for (int i = 0; i < threads; i++) {
      int number = i;
      Thread thread = new Thread(() -> work(commands, keys[number % keys.length], number, every, out));
      thread.setDaemon(true);
      thread.start();
    }
    while (System.in.read() >= 0) {}
    stopped = true;
    out.flush();
    System.exit(0);
  }

  static void work(Commands commands, String key, int number, long every, PrintStream out) {
    long due = System.nanoTime();
    for (int n = 0; !stopped; n++) {
      due = Math.max(due + every, System.nanoTime() - every);
      long wait = due - System.nanoTime();
      if (wait > 0) {
        try {
          Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
        } catch (InterruptedException e) {
          return;
        }
      }
      long begun = System.nanoTime();
      String outcome = "ok";
      try {
        if (n % 2 == 0) commands.set(key, "v" + n);
        else commands.get(key);
      } catch (Exception e) {
        outcome = e.getClass().getSimpleName();
      }
      long latency = (System.nanoTime() - begun) / 1000;
      out.println(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()) + " " + latency + " " + number + " " + outcome);
    }
  }

  static Commands jedis(String host, int port, int timeout) {
    GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
    pool.setMaxTotal(8);
    JedisCluster cluster = new JedisCluster(new HostAndPort(host, port), timeout, timeout, 5, pool);
    return new Commands() {
      public void set(String key, String value) {
        cluster.set(key, value);
      }

      public void get(String key) {
        cluster.get(key);
      }
    };
  }

  static Commands lettuce(String library, String host, int port, int timeout) {
    Duration patience = Duration.ofMillis(timeout);
    RedisURI uri = RedisURI.builder().withHost(host).withPort(port).withTimeout(patience).build();
    boolean ours = library.equals("lettuce-unslow");
    RedisClusterClient client = ours ? UnslowRedisClusterClient.create(uri) : RedisClusterClient.create(uri);
    ClusterClientOptions.Builder options =
        ClusterClientOptions.builder()
            .socketOptions(SocketOptions.builder().connectTimeout(patience).build())
            .timeoutOptions(TimeoutOptions.enabled(patience));
    if (ours) {
      options.topologyRefreshOptions(UnslowRedisClusterClient.refreshOptions());
    } else if (library.equals("lettuce-refreshing")) {
      options.topologyRefreshOptions(
          ClusterTopologyRefreshOptions.builder()
              .enableAllAdaptiveRefreshTriggers()
              .enablePeriodicRefresh(Duration.ofSeconds(60))
              .build());
    }
    client.setOptions(options.build());
    RedisAdvancedClusterCommands<String, String> commands = client.connect().sync();
    return new Commands() {
      public void set(String key, String value) {
        commands.set(key, value);
      }

      public void get(String key) {
        commands.get(key);
      }
    };
  }
}
