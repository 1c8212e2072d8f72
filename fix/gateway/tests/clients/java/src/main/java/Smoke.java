import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;

/** Jedis and Lettuce through the gateway. Arguments: host, port, "cluster" where the target is one. */
public class Smoke {
  static void must(boolean ok, String what) {
    if (!ok) throw new AssertionError(what);
  }

  public static void main(String[] args) throws Exception {
    String host = args[0];
    int port = Integer.parseInt(args[1]);
    jedis(host, port);
    lettuce(host, port);
    if (args[2].equals("cluster")) cluster(host, port);
    System.out.println("Jedis and Lettuce ok");
    System.exit(0);
  }

  static void jedis(String host, int port) throws Exception {
    try (Jedis j = new Jedis(host, port); Jedis other = new Jedis(host, port)) {
      j.flushAll();
      must("OK".equals(j.set("s", "v")) && "v".equals(j.get("s")), "set, get");
      j.hset("h", Map.of("a", "1", "b", "2"));
      must(j.hgetAll("h").size() == 2, "hash");
      Pipeline p = j.pipelined();
      List<Response<String>> replies = new ArrayList<>();
      for (int i = 0; i < 300; i++) {
        p.set("p" + i, "" + i);
        replies.add(p.get("p" + i));
      }
      p.sync();
      for (int i = 0; i < 300; i++) must(replies.get(i).get().equals("" + i), "pipeline " + i);
      must(j.mget("p1", "p2", "none").get(2) == null && j.del("p1", "p2") == 2, "mget, del");
      j.watch("{t}n");
      Transaction t = j.multi();
      t.incr("{t}n");
      t.incr("{t}n");
      must(t.exec().size() == 2, "transaction");
      must("v".equals(j.eval("return redis.call('get', KEYS[1])", 1, "s")), "eval");
      must(j.xadd("st", (redis.clients.jedis.StreamEntryID) null, Map.of("f", "v")) != null, "xadd");
      new Thread(() -> {
        try (Jedis pusher = new Jedis(host, port)) {
          Thread.sleep(200);
          pusher.rpush("q", "x");
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
        }
      }).start();
      must(j.blpop(5, "q").get(1).equals("x"), "blpop");
      CompletableFuture<String> heard = new CompletableFuture<>();
      Thread listener = new Thread(() -> {
        try (Jedis ear = new Jedis(host, port)) {
          ear.subscribe(new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
              other.publish("c", "hello");
            }

            @Override
            public void onMessage(String channel, String message) {
              heard.complete(message);
              unsubscribe();
            }
          }, "c");
        }
      });
      listener.start();
      must(heard.get(10, TimeUnit.SECONDS).equals("hello"), "pub/sub");
      listener.join(10_000);
    }
    try (JedisPooled pooled = new JedisPooled(host, port)) {
      for (int i = 0; i < 100; i++) must("OK".equals(pooled.set("x" + i, "" + i)), "pooled");
    }
  }

  static void lettuce(String host, int port) throws Exception {
    RedisClient client = RedisClient.create(RedisURI.create(host, port));
    try (var connection = client.connect(); var ear = client.connectPubSub()) {
      var sync = connection.sync();
      must("OK".equals(sync.set("s", "v")) && "v".equals(sync.get("s")), "lettuce set, get");
      var async = connection.async();
      var futures = new ArrayList<io.lettuce.core.RedisFuture<String>>();
      for (int i = 0; i < 500; i++) {
        async.set("a" + i, "" + i);
        futures.add(async.get("a" + i));
      }
      for (int i = 0; i < 500; i++) must(futures.get(i).get(10, TimeUnit.SECONDS).equals("" + i), "lettuce async " + i);
      sync.multi();
      sync.incr("{l}n");
      sync.incr("{l}n");
      TransactionResult done = sync.exec();
      must(done.size() == 2, "lettuce transaction");
      must("v".equals(sync.eval("return redis.call('get', KEYS[1])", ScriptOutputType.VALUE, "s")), "lettuce eval");
      must(sync.xadd("ls", Map.of("f", "v")) != null, "lettuce xadd");
      CompletableFuture<String> heard = new CompletableFuture<>();
      ear.addListener(new RedisPubSubAdapter<>() {
        @Override
        public void message(String channel, String message) {
          heard.complete(message);
        }
      });
      ear.sync().subscribe("lc");
      sync.publish("lc", "hello");
      must(heard.get(10, TimeUnit.SECONDS).equals("hello"), "lettuce pub/sub");
      var popped = client.connect().async().blpop(5, "lq");
      sync.rpush("lq", "x");
      KeyValue<String, String> got = popped.get(10, TimeUnit.SECONDS);
      must(got.getValue().equals("x"), "lettuce blpop");
    }
    client.shutdown(0, 1, TimeUnit.SECONDS);
  }

  static void cluster(String host, int port) {
    try (JedisCluster cluster = new JedisCluster(new HostAndPort(host, port))) {
      for (int i = 0; i < 50; i++) cluster.set("jc" + i, "" + i);
      for (int i = 0; i < 50; i++) must(cluster.get("jc" + i).equals("" + i), "jedis cluster");
    }
    RedisClusterClient client = RedisClusterClient.create(RedisURI.create(host, port));
    try (var connection = client.connect()) {
      for (int i = 0; i < 50; i++) connection.sync().set("lc" + i, "" + i);
      for (int i = 0; i < 50; i++) must(connection.sync().get("lc" + i).equals("" + i), "lettuce cluster");
    }
    client.shutdown(0, 1, TimeUnit.SECONDS);
  }
}
