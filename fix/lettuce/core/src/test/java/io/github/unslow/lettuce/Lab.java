package io.github.unslow.lettuce;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Real servers: a lab of {@code unslow lab up}, with its faults. It is on loopback addresses, so that it needs no rights.
 */
public final class Lab implements AutoCloseable {

    private final Path home;

    private final String name;

    private final List<Process> processes = new ArrayList<>();

    private final RedisClient client = RedisClient.create();

    /** A cluster of three masters; a hung one is replaced after two seconds. */
    public static Lab cluster(String server, int replicas) {
        return new Lab("""
                [deployment]
                kind = "cluster"
                server = "%s"
                masters = 3
                replicas = %d
                settings = { cluster-node-timeout = 2000 }
                [[zone]]
                name = "zone-a"
                [[zone]]
                name = "zone-b"
                [[zone]]
                name = "zone-c"
                """.formatted(server, replicas));
    }

    private Lab(String topology) {
        this.name = "lettuce-" + ProcessHandle.current().pid() + "-" + Integer.toHexString(hashCode());
        try {
            this.home = Files.createTempDirectory("unslow-lettuce");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        try {
            Path file = Files.writeString(home.resolve("lab.toml"), topology);
            run("lab", "up", "--name", name, "--flat", "--quiet", file.toString());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static String binary() {
        String binary = System.getProperty("unslow.binary", "unslow");
        if (!Files.isExecutable(Path.of(binary))) {
            throw new IllegalStateException(binary + " is not there; build it (cargo build --release), or say where it is: "
                    + "mvn -Dunslow.binary=/path/to/unslow verify");
        }
        return binary;
    }

    /** The output of a command of unslow. */
    String run(String... words) {
        try {
            Path out = Files.createTempFile(home, "out", "");
            Process process = process(words).redirectErrorStream(true).redirectOutput(out.toFile()).start();
            if (!process.waitFor(120, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException(String.join(" ", words) + " did not end");
            }
            String text = Files.readString(out);
            if (process.exitValue() != 0) {
                throw new IllegalStateException(String.join(" ", words) + ": " + text);
            }
            return text;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** A command of unslow that goes on until the lab is closed, or ended by the caller. */
    Process start(String... words) {
        try {
            Process process = process(words).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            processes.add(process);
            return process;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private ProcessBuilder process(String... words) {
        List<String> all = new ArrayList<>(List.of(binary()));
        all.addAll(List.of(words));
        ProcessBuilder builder = new ProcessBuilder(all);
        builder.environment().put("UNSLOW_LABS", home.resolve("labs").toString());
        return builder;
    }

    /** Begins a fault; what it is done to as {@code unslow lab fault} has it. */
    public void fault(String... words) {
        List<String> all = new ArrayList<>(List.of("lab", "fault"));
        all.addAll(List.of(words));
        all.addAll(List.of("--lab", name));
        run(all.toArray(new String[0]));
    }

    /** Ends every fault. */
    void heal() {
        run("lab", "heal", "--lab", name);
    }

    /** A node's address, of {@code node-1} for 1. */
    RedisURI node(int number) {
        String[] address = address(number).split(":");
        return RedisURI.create(address[0], Integer.parseInt(address[1]));
    }

    public String address(int number) {
        for (String line : run("lab", "ls", name).split("\n")) {
            String[] words = line.trim().split(" +");
            for (int i = 1; i < words.length; i++) {
                if (words[i].equals("node-" + number) && words[i - 1].contains(":")) {
                    return words[i - 1];
                }
            }
        }
        throw new IllegalStateException("no node " + number);
    }

    /** What a node says of the cluster. */
    Topology view(int number) {
        try (StatefulRedisConnection<String, String> connection = client.connect(node(number))) {
            return ClusterNodesReply.parse(connection.sync().clusterNodes(), "127.0.0.1", 1);
        }
    }

    /** A watcher that leads: who comes now hears it at once. */
    Process watch() {
        Process watcher = start("watch", address(1), "--publish");
        AtomicInteger beats = new AtomicInteger();
        StatefulRedisPubSubConnection<String, String> connection = client.connectPubSub(node(1));
        connection.addListener(new RedisPubSubAdapter<>() {

            @Override
            public void message(String channel, String text) {
                beats.incrementAndGet();
            }

        });
        connection.sync().subscribe(Announcement.DIGEST);
        await("two heartbeats", () -> beats.get() >= 2);
        connection.close();
        return watcher;
    }

    /** The number of a replica of {@code node-N}. */
    int replicaOf(int number) {
        Topology view = view(number);
        String master = view.at(address(number)).id();
        for (int n = 1; n <= 6; n++) {
            Topology.Node node = view.at(address(n));
            if (master.equals(node.masterId())) {
                return n;
            }
        }
        throw new IllegalStateException("no replica of node-" + number);
    }

    /** CLUSTER RESET HARD: it has another id afterwards, and knows nobody. */
    void reset(int number) {
        try (StatefulRedisConnection<String, String> connection = client.connect(node(number))) {
            if (connection.sync().role().get(0).equals("master")) {
                connection.sync().flushall();
            }
            connection.sync().clusterReset(true);
        }
    }

    /** Another cluster on the same addresses: three masters, and no slot where it was. */
    void remake() {
        for (int n = 1; n <= 6; n++) {
            reset(n);
        }
        int[] bounds = { 0, 6000, 12_000, Topology.SLOTS };
        for (int n = 1; n <= 3; n++) {
            try (StatefulRedisConnection<String, String> connection = client.connect(node(4 - n))) {
                int[] slots = IntStream.range(bounds[n - 1], bounds[n]).toArray();
                connection.sync().clusterAddSlots(slots);
                if (n > 1) {
                    connection.sync().clusterMeet(node(3).getHost(), node(3).getPort());
                }
            }
        }
    }

    /** One master more, without slots. Its address. */
    String grow(String server) {
        Matcher path = Pattern.compile("\"name\": \"" + server + "\".*?\"server\": \"([^\"]+)\"", Pattern.DOTALL)
                .matcher(run("engine", "ls", "--format", "json", "--quiet"));
        if (!path.find()) {
            throw new IllegalStateException(server + " is not installed: unslow engine install");
        }
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            int port = free.getLocalPort() % 40_000 + 10_000; // the bus is 10,000 higher
            Process process = new ProcessBuilder(path.group(1), "--port", "" + port, "--bind", "127.0.0.1", "--cluster-enabled",
                    "yes", "--save", "", "--dir", home.toString()).redirectErrorStream(true)
                            .redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            processes.add(process);
            RedisURI added = RedisURI.create("127.0.0.1", port);
            await("the new server", () -> {
                try (StatefulRedisConnection<String, String> connection = client.connect(added)) {
                    connection.sync().clusterMeet(node(1).getHost(), node(1).getPort());
                    return true;
                }
            });
            await("it to be known", () -> view(2).nodes().stream().anyMatch(n -> n.port() == port));
            // A node that has just started takes no writes for two seconds.
            await("it to be ready", () -> {
                try (StatefulRedisConnection<String, String> connection = client.connect(added)) {
                    return connection.sync().clusterInfo().contains("cluster_state:ok");
                }
            });
            return "127.0.0.1:" + port;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Gives a slot without keys to another master. */
    void give(int slot, String to) {
        Topology view = view(2);
        Topology.Node from = view.owners()[slot];
        Topology.Node target = view.at(to);
        try (StatefulRedisConnection<String, String> at = client.connect(RedisURI.create(target.host(), target.port()));
                StatefulRedisConnection<String, String> source = client.connect(RedisURI.create(from.host(), from.port()))) {
            at.sync().clusterSetSlotImporting(slot, from.id());
            source.sync().clusterSetSlotMigrating(slot, target.id());
            at.sync().clusterSetSlotNode(slot, target.id());
            source.sync().clusterSetSlotNode(slot, target.id());
        }
    }

    /** How many connections a node has, but for replicas' and the one that asks. */
    long clients(int number) {
        try (StatefulRedisConnection<String, String> connection = client.connect(node(number))) {
            return connection.sync().clientList().lines().filter(line -> !line.contains("flags=S") && !line.contains("flags=M"))
                    .count();
        }
    }

    /** Whether somebody listens to a channel at this node. */
    boolean isSubscribed(int number, String channel) {
        try (StatefulRedisConnection<String, String> connection = client.connect(node(number))) {
            return connection.sync().pubsubNumsub(channel).get(channel) > 0;
        }
    }

    /** Publishes as anybody could. */
    void publish(String channel, String text) {
        publish(1, channel, text);
    }

    void publish(int number, String channel, String text) {
        try (StatefulRedisConnection<String, String> connection = client.connect(node(number))) {
            connection.sync().publish(channel, text);
        }
    }

    /** Waits for something, with the sentence to print if it never comes. */
    public static void await(String what, Callable<Boolean> condition) {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        Exception last = null;
        while (System.nanoTime() < until) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (Exception e) {
                last = e;
            }
            try {
                Thread.sleep(2);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
        throw new AssertionError("never: " + what, last);
    }

    @Override
    public void close() {
        client.shutdown(0, 1, TimeUnit.SECONDS);
        for (Process process : processes) {
            process.destroy();
        }
        run("lab", "down", name);
    }

}
