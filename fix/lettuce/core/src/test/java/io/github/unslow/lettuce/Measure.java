package io.github.unslow.lettuce;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;

/**
 * The figures of bench/lettuce.sh: how soon a client knows, what topology costs the servers, whether commands take longer.
 * Plain Lettuce stands beside in the same run.
 *
 * <p>{@code Measure moves|failovers|cpu|latency SERVER}; prints rows of a table.
 */
public final class Measure {

    private static final String SERVER = System.getProperty("server", "valkey-9.1");

    /** Moves that are not counted: a JVM loads its classes. */
    private static final int WARM_UP = 3;

    private Measure() {
    }

    public static void main(String[] arguments) {
        try (Lab lab = Lab.cluster(SERVER, 1)) {
            switch (arguments[0]) {
                case "moves":
                    moves(lab, Integer.parseInt(arguments[1]), Long.parseLong(arguments[2]));
                    break;
                case "failovers":
                    failovers(lab, arguments[1], Integer.parseInt(arguments[2]));
                    break;
                case "cpu":
                    cpu(lab, Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]));
                    break;
                case "latency":
                    latency(lab, Integer.parseInt(arguments[1]));
                    break;
                default:
                    throw new IllegalArgumentException(arguments[0]);
            }
        }
        System.exit(0); // threads of clients that were left running
    }

    private static UnslowRedisClusterClient ours(Lab lab, TopologyOptions.Push push) {
        UnslowRedisClusterClient client = UnslowRedisClusterClient.create(uri(lab), TopologyOptions.builder().push(push).build());
        client.connect();
        Lab.await("pushes", () -> client.getTopologyStatus().complete());
        return client;
    }

    private static RedisURI uri(Lab lab) {
        RedisURI uri = lab.node(2);
        uri.setTimeout(Duration.ofSeconds(1));
        return uri;
    }

    /** As Lettuce 7 is without a word. */
    private static RedisClusterClient plain(Lab lab) {
        return RedisClusterClient.create(uri(lab));
    }

    /** With everything that Lettuce offers. */
    private static RedisClusterClient refreshing(Lab lab) {
        RedisClusterClient client = RedisClusterClient.create(uri(lab));
        client.setOptions(ClusterClientOptions.builder().topologyRefreshOptions(periodic(Duration.ofSeconds(60))).build());
        return client;
    }

    @SuppressWarnings("deprecation") // on by default in Lettuce 7, off in 6
    private static ClusterTopologyRefreshOptions periodic(Duration period) {
        return ClusterTopologyRefreshOptions.builder().enableAllAdaptiveRefreshTriggers().enablePeriodicRefresh(period).build();
    }

    /** A client that is measured. */
    private record Candidate(String name, RedisClusterClient client) {
    }

    private static Map<String, Candidate> candidates(Lab lab) {
        Map<String, Candidate> all = new LinkedHashMap<>();
        for (Candidate each : List.of(new Candidate("unslow, watcher", ours(lab, TopologyOptions.Push.WATCHER)),
                new Candidate("unslow, servers", ours(lab, TopologyOptions.Push.SERVERS)),
                new Candidate("unslow, polling", UnslowRedisClusterClient.create(uri(lab),
                        TopologyOptions.builder().push(TopologyOptions.Push.NONE).build())),
                new Candidate("Lettuce", plain(lab)),
                new Candidate("Lettuce, adaptive and every 60 s", refreshing(lab)))) {
            all.put(each.name(), each);
        }
        return all;
    }

    private static String key(int slot) {
        for (int n = 0;; n++) {
            if (SlotHash.getSlot("{k" + n + "}") == slot) {
                return "{k" + n + "}";
            }
        }
    }

    /** Writes every millisecond, while {@code now} says so. */
    private static void use(Candidate candidate, String key, BooleanSupplier now) {
        RedisAdvancedClusterCommands<String, String> commands = candidate.client().connect().sync();
        Thread thread = new Thread(() -> {
            while (true) {
                try {
                    if (now.getAsBoolean()) {
                        commands.set(key, "v");
                    }
                    Thread.sleep(1);
                } catch (InterruptedException e) {
                    return;
                } catch (RuntimeException e) {
                    // it is about when it works again
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static String owner(RedisClusterClient client, int slot) {
        RedisClusterNode node = client.getPartitions().getMasterBySlot(slot);
        return node == null ? "nobody" : node.getUri().getHost() + ":" + node.getUri().getPort();
    }

    private static double millis(long from, long to) {
        return (to - from) / 1e6;
    }

    private static String row(String name, List<Double> all, int never) {
        double[] sorted = all.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        if (sorted.length == 0) {
            return "| " + name + " | - | - | - | " + never + " |";
        }
        return String.format("| %s | %.1f ms | %.1f ms | %.1f ms | %d |", name, sorted[sorted.length / 2],
                sorted[Math.min(sorted.length - 1, (int) Math.ceil(sorted.length * 0.99) - 1)], sorted[sorted.length - 1], never);
    }

    /**
     * From SETSLOT at the new owner until a client's route has changed, one client after the other: together they would wait for
     * each other's refreshes on these processors.
     *
     * @param pauseMs after a client knows a move, until the next: Lettuce refreshes by itself every 5 s at most
     */
    private static void moves(Lab lab, int count, long pauseMs) {
        lab.start("watch", lab.address(1), "--publish");
        Map<String, Candidate> candidates = candidates(lab);
        RedisClient client = RedisClient.create();
        List<StatefulRedisConnection<String, String>> masters = new ArrayList<>();
        List<String> ids = new ArrayList<>();
        List<String> addresses = new ArrayList<>();
        for (int n = 1; n <= 3; n++) {
            StatefulRedisConnection<String, String> connection = client.connect(lab.node(n));
            masters.add(connection);
            ids.add(connection.sync().clusterMyId());
            addresses.add(lab.address(n));
        }
        AtomicReference<Candidate> writes = new AtomicReference<>();
        candidates.values().forEach(candidate -> use(candidate, key(42), () -> writes.get() == candidate));
        int at = 0;
        for (Candidate candidate : candidates.values()) {
            candidate.client().refreshPartitions();
            writes.set(candidate);
            pause(7000); // what it began with is over
            List<Double> times = new ArrayList<>();
            int never = 0;
            for (int n = -WARM_UP; n < count; n++) {
                int from = at;
                int to = (at + 1) % 3;
                at = to;
                RedisCommands<String, String> source = masters.get(from).sync();
                RedisCommands<String, String> target = masters.get(to).sync();
                target.clusterSetSlotImporting(42, ids.get(from));
                source.clusterSetSlotMigrating(42, ids.get(to));
                String[] address = addresses.get(to).split(":");
                source.migrate(address[0], Integer.parseInt(address[1]), 0, 1000,
                        io.lettuce.core.MigrateArgs.Builder.keys(key(42)).replace());
                long begun = System.nanoTime();
                target.clusterSetSlotNode(42, ids.get(to));
                source.clusterSetSlotNode(42, ids.get(to));
                boolean known = false;
                while (!known && System.nanoTime() - begun < TimeUnit.SECONDS.toNanos(7)) {
                    known = addresses.get(to).equals(owner(candidate.client(), 42));
                    if (!known) {
                        pause(1);
                    }
                }
                if (n >= 0 && known) {
                    times.add(millis(begun, System.nanoTime()));
                } else if (n >= 0) {
                    never++;
                }
                pause(pauseMs);
            }
            System.out.println(row(candidate.name(), times, never));
        }
    }

    /** From the promotion, as the replica itself says it, until each client's route has changed. */
    private static void failovers(Lab lab, String fault, int count) {
        lab.start("watch", lab.address(1), "--publish");
        Map<String, List<Double>> times = new LinkedHashMap<>();
        Map<String, Integer> never = new LinkedHashMap<>();
        Map<String, Candidate> candidates = candidates(lab);
        candidates.keySet().forEach(name -> times.put(name, new ArrayList<>()));
        candidates.values().forEach(candidate -> use(candidate, key(42), () -> true));
        RedisClient client = RedisClient.create();
        for (int n = 0; n < count; n++) {
            Topology view = lab.view(2);
            Topology.Node old = view.owners()[42];
            Topology.Node replica = view.replicasOf(old.id()).get(0);
            RedisCommands<String, String> said = client.connect(RedisURI.create(replica.host(), replica.port())).sync();
            lab.fault(fault, old.address());
            while (!"master".equals(said.role().get(0))) {
                pause(1);
            }
            long promoted = System.nanoTime();
            Map<String, Candidate> open = new LinkedHashMap<>(candidates);
            while (!open.isEmpty() && System.nanoTime() - promoted < TimeUnit.SECONDS.toNanos(12)) {
                open.values().removeIf(candidate -> {
                    boolean known = replica.address().equals(owner(candidate.client(), 42));
                    if (known) {
                        times.get(candidate.name()).add(millis(promoted, System.nanoTime()));
                    }
                    return known;
                });
                pause(1);
            }
            open.keySet().forEach(name -> never.merge(name, 1, Integer::sum));
            lab.heal();
            Lab.await("the old master as a replica", () -> !lab.view(2).byId(old.id()).master() && !lab.view(2).byId(old.id())
                    .failed());
            // Everybody begins the next round with the truth.
            candidates.values().forEach(candidate -> candidate.client().refreshPartitions());
            pause(3000);
        }
        times.forEach((name, all) -> System.out.println(row(name, all, never.getOrDefault(name, 0))));
    }

    /** CPU time of all servers while so many clients, each with one connection that does nothing, keep their topology. */
    private static void cpu(Lab lab, int clients, int seconds) {
        ClientResources resources = ClientResources.create();
        spend("nobody", lab, 1, seconds, () -> null);
        ClusterTopologyRefreshOptions never = ClusterTopologyRefreshOptions.builder().enablePeriodicRefresh(false).build();
        spend("Lettuce, never again", lab, clients, seconds, () -> plain(lab, resources, never));
        spend("Lettuce, every 60 s from all nodes", lab, clients, seconds,
                () -> plain(lab, resources, periodic(Duration.ofSeconds(60))));
        spend("unslow, polling", lab, clients, seconds, () -> one(lab, resources, TopologyOptions.Push.NONE));
        spend("unslow, servers", lab, clients, seconds, () -> one(lab, resources, TopologyOptions.Push.SERVERS));
        lab.start("watch", lab.address(1), "--publish");
        pause(2000);
        spend("nobody but unslow watch", lab, 1, seconds, () -> null);
        spend("unslow, watcher", lab, clients, seconds, () -> one(lab, resources, TopologyOptions.Push.WATCHER));
    }

    private static RedisClusterClient plain(Lab lab, ClientResources resources, ClusterTopologyRefreshOptions refresh) {
        RedisClusterClient client = RedisClusterClient.create(resources, uri(lab));
        client.setOptions(ClusterClientOptions.builder().topologyRefreshOptions(refresh).build());
        client.connect();
        return client;
    }

    private static RedisClusterClient one(Lab lab, ClientResources resources, TopologyOptions.Push push) {
        RedisClusterClient client = UnslowRedisClusterClient.create(resources, List.of(uri(lab)),
                TopologyOptions.builder().push(push).build());
        client.connect();
        return client;
    }

    private static void spend(String name, Lab lab, int clients, int seconds, Supplier<RedisClusterClient> make) {
        List<RedisClusterClient> all = new ArrayList<>();
        for (int n = 0; n < clients; n++) {
            RedisClusterClient client = make.get();
            if (client != null) {
                all.add(client);
            }
        }
        pause(45_000); // their beginning, and what that needed
        double[] before = used(lab);
        pause(seconds * 1000L);
        double[] after = used(lab);
        System.out.printf("| %s | %.2f ms/s | %.1f | %.1f | %.1f kB/s |%n", name, (after[0] - before[0]) * 1000 / seconds,
                (after[1] - before[1]) / seconds, (after[2] - before[2]) / seconds, (after[3] - before[3]) / 1000 / seconds);
        all.forEach(client -> client.shutdownAsync(0, 1, TimeUnit.SECONDS));
        pause(10_000);
    }

    /** CPU seconds, commands, connections and bytes sent, of all servers. */
    private static double[] used(Lab lab) {
        RedisClient client = RedisClient.create();
        double[] sums = new double[4];
        Map<String, Integer> fields = Map.of("used_cpu_sys", 0, "used_cpu_user", 0, "total_commands_processed", 1,
                "total_connections_received", 2, "total_net_output_bytes", 3);
        for (int n = 1; n <= 6; n++) {
            try (StatefulRedisConnection<String, String> connection = client.connect(lab.node(n))) {
                for (String line : connection.sync().info().split("\r\n")) {
                    String[] words = line.split(":", 2);
                    Integer at = fields.get(words[0]);
                    if (at != null) {
                        sums[at] += Double.parseDouble(words[1]);
                    }
                }
            }
        }
        client.shutdown(0, 1, TimeUnit.SECONDS);
        return sums;
    }

    /** GET of one thread, in windows side by side. */
    private static void latency(Lab lab, int windows) {
        Map<String, RedisAdvancedClusterCommands<String, String>> all = new LinkedHashMap<>();
        all.put("Lettuce", plain(lab).connect().sync());
        all.put("unslow, servers", ours(lab, TopologyOptions.Push.SERVERS).connect().sync());
        Map<String, List<double[]>> seen = new LinkedHashMap<>();
        for (int w = 0; w < windows + 3; w++) {
            for (Map.Entry<String, RedisAdvancedClusterCommands<String, String>> each : all.entrySet()) {
                long[] times = new long[20_000];
                for (int i = 0; i < times.length; i++) {
                    long begun = System.nanoTime();
                    each.getValue().get("k" + i % 100);
                    times[i] = System.nanoTime() - begun;
                }
                Arrays.sort(times);
                if (w >= 3) { // the first warm up
                    seen.computeIfAbsent(each.getKey(), name -> new ArrayList<>())
                            .add(new double[] { times[times.length / 2] / 1e3, times[times.length * 99 / 100] / 1e3 });
                }
            }
        }
        seen.forEach((name, windowsOf) -> System.out.printf("| %s | %.1f us | %.1f us |%n", name, median(windowsOf, 0),
                median(windowsOf, 1)));
    }

    private static double median(List<double[]> all, int which) {
        return all.stream().mapToDouble(each -> each[which]).sorted().skip(all.size() / 2).findFirst().orElse(Double.NaN);
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

}
