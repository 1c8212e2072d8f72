package io.github.unslow.lettuce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.unslow.lettuce.TopologyStatus.Source;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.async.RedisAdvancedClusterAsyncCommands;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.pubsub.StatefulRedisClusterPubSubConnection;
import io.lettuce.core.internal.HostAndPort;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DnsResolver;
import io.lettuce.core.resource.MappingSocketAddressResolver;
import java.io.IOException;
import java.net.InetAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Situations of incident I1 on real clusters; plain Lettuce stands beside where it makes the difference plain. */
class ClusterIntegrationTests {

    private static final int SLOT = 42;

    private Lab lab;

    private RedisClusterClient client;

    /** A second one. */
    private RedisClusterClient beside;

    private RedisAdvancedClusterCommands<String, String> commands;

    private UnslowRedisClusterClient open(TopologyOptions.Builder options) {
        RedisURI uri = lab.node(2);
        uri.setTimeout(Duration.ofSeconds(5));
        UnslowRedisClusterClient opened = UnslowRedisClusterClient.create(uri, options.seed(7).build());
        client = opened;
        commands = opened.connect().sync();
        return opened;
    }

    @AfterEach
    void close() {
        for (RedisClusterClient each : new RedisClusterClient[] { client, beside }) {
            if (each != null) {
                each.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
        client = null;
        beside = null;
        if (lab != null) {
            lab.close();
            lab = null;
        }
    }

    private static String owner(RedisClusterClient client, int slot) {
        RedisClusterNode node = client.getPartitions().getMasterBySlot(slot);
        return node == null ? null : node.getUri().getHost() + ":" + node.getUri().getPort();
    }

    private static String key(int slot) {
        for (int n = 0;; n++) {
            if (SlotHash.getSlot("{k" + n + "}") == slot) {
                return "{k" + n + "}";
            }
        }
    }

    private static void awaitSource(UnslowRedisClusterClient client, Source source) {
        Lab.await("topology told by " + source, () -> client.getTopologyStatus().source() == source
                && client.getTopologyStatus().complete());
    }

    @ParameterizedTest
    @ValueSource(strings = { "valkey-9.1", "redis-7.0" })
    void aSlotThatMovesIsKnownWithoutACommand(String server) {
        lab = Lab.cluster(server, 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS));
        beside = RedisClusterClient.create(lab.node(2));
        beside.connect().sync().set(key(SLOT), "v");
        awaitSource(ours, Source.SERVERS);
        String before = owner(ours, SLOT);
        lab.fault("move_slot", "node-3", "" + SLOT);
        Lab.await("the slot's new owner", () -> lab.address(3).equals(owner(ours, SLOT)));
        assertEquals(before, owner(beside, SLOT), "plain Lettuce learns of it by its next command");
        commands.set(key(SLOT), "after");
        assertEquals("after", commands.get(key(SLOT)));
        // One after another, and back: everything is heard, not only the first.
        lab.fault("reshard", "node-1", "30");
        Lab.await("every route as the servers have it", () -> routesAgree(ours));
        awaitSource(ours, Source.SERVERS);
    }

    /** Whether each slot's owner is the one that its node names. */
    private boolean routesAgree(RedisClusterClient of) {
        Topology.Node[] owners = lab.view(2).owners();
        for (int slot = 0; slot < owners.length; slot++) {
            if (!owners[slot].address().equals(owner(of, slot))) {
                return false;
            }
        }
        return true;
    }

    @Test
    void slotsThatMoveAtOnceAreKnown() {
        lab = Lab.cluster("valkey-9.1", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS));
        awaitSource(ours, Source.SERVERS);
        lab.fault("reshard_atomic", "node-1", "200");
        Lab.await("every route as the servers have it", () -> routesAgree(ours));
        assertNotEquals(lab.address(1), owner(ours, 0));
    }

    @ParameterizedTest
    @ValueSource(strings = { "hang", "kill" })
    void aMasterThatDoesNotAnswerIsLeft(String fault) throws Exception {
        lab = Lab.cluster("redis-7.0", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        commands.set(key(SLOT), "before");
        String before = owner(ours, SLOT);
        RedisURI uri = lab.node(2);
        uri.setTimeout(Duration.ofMinutes(5));
        beside = UnslowRedisClusterClient.create(uri);
        RedisAdvancedClusterAsyncCommands<String, String> patient = beside.connect().async();
        assertEquals("before", patient.get(key(SLOT)).get());
        lab.fault(fault, "node-1");
        RedisFuture<String> underWay = patient.get(key(SLOT));
        Lab.await("a write of the shard that was hit", () -> "OK".equals(commands.set(key(SLOT), "after")));
        Lab.await("the end of what was under way", underWay::isDone);
        if (fault.equals("hang")) {
            RedisCommandTimeoutException given = assertInstanceOf(RedisCommandTimeoutException.class,
                    assertThrows(ExecutionException.class, underWay::get).getCause());
            assertTrue(given.getMessage().contains("has lost its slots"), given.getMessage());
        } else {
            // It waited for the connection to come back, and went to the new master.
            assertNotNull(underWay.get());
        }
        assertNotEquals(before, owner(ours, SLOT));
        lab.heal();
        // The old master returns as a replica: it must not be written to, and be read from only with its data.
        Lab.await("the old master as a replica that is ready", () -> ours.getPartitions().getPartitions().size() == 6
                && ours.getPartitions().stream().anyMatch(n -> before.equals(n.getUri().getHost() + ":" + n.getUri().getPort())
                        && n.is(RedisClusterNode.NodeFlag.REPLICA)));
        assertEquals("after", commands.get(key(SLOT)));
    }

    @Test
    void subscriptionsLeaveAHungMaster() {
        lab = Lab.cluster("valkey-9.1", 1);
        int master = 4;
        StatefulRedisClusterPubSubConnection<String, String> listener = null;
        // Each client begins with another node: one that begins with a master.
        for (int seed = 0; master > 3; seed++) {
            if (client != null) {
                client.shutdown(0, 1, TimeUnit.SECONDS);
            }
            client = UnslowRedisClusterClient.create(lab.node(2), TopologyOptions.builder().seed(seed).build());
            listener = client.connectPubSub();
            listener.sync().subscribe("news");
            master = IntStream.rangeClosed(1, 6).filter(n -> lab.isSubscribed(n, "news")).findFirst().orElseThrow();
        }
        AtomicInteger heard = new AtomicInteger();
        listener.addListener(new RedisPubSubAdapter<>() {

            @Override
            public void message(String channel, String message) {
                heard.incrementAndGet();
            }

        });
        int other = master % 3 + 1;
        Lab.await("a message", () -> {
            lab.publish(other, "news", "before");
            return heard.get() > 0;
        });
        // Somebody must owe an answer.
        commands = client.connect().sync();
        RedisAdvancedClusterAsyncCommands<String, String> waiting = client.connect().async();
        int hung = master;
        int slot = lab.view(other).at(lab.address(hung)).slots().nextSetBit(0);
        commands.set(key(slot), "v");
        lab.fault("hang", "node-" + hung);
        heard.set(0);
        waiting.get(key(slot));
        Lab.await("a message after the hung master was left", () -> {
            lab.publish(other, "news", "after");
            return heard.get() > 0;
        });
    }

    /** As through a tunnel: no connection leads where CLUSTER NODES says. */
    @ParameterizedTest
    @ValueSource(booleans = { false, true })
    void aHungMasterBehindMappedAddressesIsLeft(boolean names) throws IOException {
        lab = Lab.cluster("redis-7.0", 1);
        Map<HostAndPort, HostAndPort> ports = new HashMap<>();
        List<Tunnel> tunnels = new ArrayList<>();
        for (int n = 1; n <= 6; n++) {
            Tunnel tunnel = new Tunnel(lab.node(n));
            tunnels.add(tunnel);
            ports.put(HostAndPort.parse(lab.address(n)), HostAndPort.of(names ? "localhost" : "127.0.0.1", tunnel.port()));
        }
        DnsResolver dns = names ? host -> new InetAddress[0] : InetAddress::getAllByName;
        ClientResources resources = ClientResources.builder()
                .socketAddressResolver(MappingSocketAddressResolver.create(dns, to -> ports.getOrDefault(to, to))).build();
        try {
            RedisURI uri = lab.node(2);
            uri.setTimeout(Duration.ofSeconds(5));
            UnslowRedisClusterClient ours = UnslowRedisClusterClient.create(resources, List.of(uri),
                    TopologyOptions.builder().push(TopologyOptions.Push.NONE).refreshPeriod(Duration.ofHours(1)).build());
            client = ours;
            commands = ours.connect().sync();
            commands.set(key(SLOT), "before");
            String before = owner(ours, SLOT);
            lab.fault("hang", "node-1");
            Lab.await("a write of the shard that was hit", () -> "OK".equals(commands.set(key(SLOT), "after")));
            assertNotEquals(before, owner(ours, SLOT));
            assertTrue(tunnels.get(0).used(), "connections are mapped");
        } finally {
            close(); // the clients before their resources
            tunnels.forEach(Tunnel::close);
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    @Test
    void aReplicaThatHangsIsNotReadFromUntilItIsBack() {
        lab = Lab.cluster("redis-7.0", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        commands.set(key(SLOT), "v");
        RedisAdvancedClusterCommands<String, String> readers = readers(ours);
        beside = RedisClusterClient.create(ours.getPartitions().getMasterBySlot(SLOT).getUri());
        RedisAdvancedClusterCommands<String, String> plainReaders = readers(beside);
        Lab.await("the value at the replica", () -> "v".equals(readers.get(key(SLOT))));
        assertEquals("v", plainReaders.get(key(SLOT)));
        String replica = "node-" + lab.replicaOf(1);
        lab.fault("hang", replica);
        Lab.await("a read", () -> "v".equals(readers.get(key(SLOT))));
        for (int n = 0; n < 50; n++) {
            assertEquals("v", readers.get(key(SLOT)), "the master answers");
        }
        assertThrows(RedisCommandTimeoutException.class, () -> plainReaders.get(key(SLOT)));
        lab.heal();
        Lab.await("a replica to read from", () -> ours.getPartitions().stream()
                .filter(n -> n.is(RedisClusterNode.NodeFlag.REPLICA)).allMatch(n -> n.getReplOffset() != 0));
        assertEquals("v", readers.get(key(SLOT)));
    }

    private static RedisAdvancedClusterCommands<String, String> readers(RedisClusterClient of) {
        StatefulRedisClusterConnection<String, String> connection = of.connect();
        connection.setReadFrom(ReadFrom.REPLICA_PREFERRED);
        connection.setTimeout(Duration.ofSeconds(5));
        return connection.sync();
    }

    @Test
    void aFailoverOnPurposeIsFollowed() {
        lab = Lab.cluster("valkey-9.1", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS));
        awaitSource(ours, Source.SERVERS);
        String before = owner(ours, SLOT);
        lab.fault("failover", "node-1");
        Lab.await("the promoted replica as the owner", () -> !before.equals(owner(ours, SLOT)));
        awaitSource(ours, Source.SERVERS);
        commands.set(key(SLOT), "v");
    }

    @Test
    void aWatcherIsListenedToAndMissedWhenItGoes() {
        lab = Lab.cluster("valkey-9.1", 1);
        Process watcher = lab.watch();
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        awaitSource(ours, Source.WATCHER);
        // A second one listens to the first, and is ready when that goes.
        Process second = lab.start("watch", lab.address(2), "--publish");
        long refreshes = ours.getTopologyStatus().refreshes();
        lab.fault("move_slot", "node-3", "" + SLOT);
        Lab.await("the slot's new owner", () -> lab.address(3).equals(owner(ours, SLOT)));
        long heard = ours.getTopologyStatus().announcements();
        Lab.await("a heartbeat after it", () -> ours.getTopologyStatus().announcements() > heard + 1);
        assertEquals(refreshes, ours.getTopologyStatus().refreshes(), "nobody was asked");
        // What anybody publishes.
        for (String nonsense : new String[] { "", "42", "99999 1.2.3.4:5", "42 1.2.3.4:5", "42 " + lab.address(1) }) {
            lab.publish(Announcement.MOVED, nonsense);
        }
        lab.publish(Announcement.DIGEST, "00e1b2c3d4f5a697 7 somebody");
        // The last but one was a replay: where the slot had been. The nodes themselves are asked, and believed.
        Lab.await("every route as the servers have it", () -> routesAgree(ours));
        watcher.destroy();
        long since = ours.getTopologyStatus().announcements();
        Lab.await("the second watcher", () -> ours.getTopologyStatus().announcements() > since + 2);
        assertEquals(Source.WATCHER, ours.getTopologyStatus().source());
        second.destroy();
        awaitSource(ours, Source.SERVERS);
        lab.fault("move_slot", "node-2", "" + (SLOT + 1));
        Lab.await("the slot's new owner", () -> lab.address(2).equals(owner(ours, SLOT + 1)));
    }

    @Test
    void aClusterWithoutReplicasIsAskedAtItsMasters() {
        lab = Lab.cluster("redis-7.0", 0);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        commands.set(key(SLOT), "v");
        awaitSource(ours, Source.SERVERS);
        assertEquals(3, ours.getPartitions().size());
    }

    @Test
    void oldServersArePolled() {
        lab = Lab.cluster("redis-6.2", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS)
                .refreshPeriod(Duration.ofSeconds(1)));
        Lab.await("polling", () -> ours.getTopologyStatus().source() == Source.POLLING);
        lab.fault("move_slot", "node-3", "" + SLOT);
        Lab.await("the slot's new owner", () -> lab.address(3).equals(owner(ours, SLOT)));
    }

    @Test
    void aNodeThatIsAddedIsKnownWithItsFirstSlot() {
        lab = Lab.cluster("valkey-9.1", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS));
        awaitSource(ours, Source.SERVERS);
        String added = lab.grow("valkey-9.1");
        lab.give(SLOT, added);
        Lab.await("the new node as the slot's owner", () -> added.equals(owner(ours, SLOT)));
        commands.set(key(SLOT), "v");
        Lab.await("its own subscriptions", () -> ours.getTopologyStatus().complete());
        assertEquals(7, ours.getPartitions().size());
    }

    @Test
    void anotherClusterBehindTheSeedIsTakenForWhatItIs() {
        lab = Lab.cluster("valkey-9.1", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.NONE)
                .refreshPeriod(Duration.ofSeconds(1)));
        String before = ours.getPartitions().getMasterBySlot(SLOT).getNodeId();
        // A node that was emptied knows nobody: it replaces nothing.
        int replica = lab.replicaOf(1);
        lab.reset(replica);
        long refreshes = ours.getTopologyStatus().refreshes();
        Lab.await("two refreshes more", () -> ours.getTopologyStatus().refreshes() > refreshes + 2);
        assertEquals(before, ours.getPartitions().getMasterBySlot(SLOT).getNodeId());
        // Everybody emptied, and other masters under the same addresses.
        lab.remake();
        Lab.await("the other cluster", () -> {
            RedisClusterNode owner = ours.getPartitions().getMasterBySlot(SLOT);
            return owner != null && !owner.getNodeId().equals(before) && routesAgree(ours);
        });
        Lab.await("a write to it", () -> "OK".equals(commands.set(key(SLOT), "v")));
    }

    @Test
    void theClientStartsWhileANodeIsDown() {
        lab = Lab.cluster("valkey-9.1", 1);
        lab.fault("kill", "node-1");
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        Lab.await("a write of the shard that was hit", () -> "OK".equals(commands.set(key(SLOT), "v")));
        Lab.await("the dead node to be left out", () -> ours.getPartitions().size() == 5);
        lab.heal();
        Lab.await("it to be back", () -> ours.getPartitions().size() == 6);
    }

    @Test
    void aClientThatIsShutDownEndsEverything() {
        lab = Lab.cluster("valkey-9.1", 0);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder().push(TopologyOptions.Push.SERVERS));
        awaitSource(ours, Source.SERVERS);
        client = null;
        ours.shutdown(0, 1, TimeUnit.SECONDS);
        assertTrue(ours.refreshPartitionsAsync().toCompletableFuture().isCompletedExceptionally());
        Lab.await("no connection of it", () -> lab.clients(2) <= 1);
    }

    @Test
    void aBlockingCommandIsNoHungNode() {
        lab = Lab.cluster("valkey-9.1", 1);
        UnslowRedisClusterClient ours = open(TopologyOptions.builder());
        long refreshes = ours.getTopologyStatus().refreshes();
        assertEquals(null, commands.blpop(0.9, key(SLOT)));
        assertTrue(ours.getTopologyStatus().refreshes() <= refreshes + 2, "it was asked whether it lives, no more");
        assertEquals(6, ours.getPartitions().size());
    }

}
