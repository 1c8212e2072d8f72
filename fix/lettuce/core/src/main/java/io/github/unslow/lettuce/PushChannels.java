package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Topology.Node;
import io.github.unslow.lettuce.TopologyOptions.Push;
import io.github.unslow.lettuce.TopologyStatus.Source;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import io.netty.util.internal.logging.InternalLogger;
import io.netty.util.internal.logging.InternalLoggerFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/**
 * Who tells of changes. A watcher's messages reach every node of the cluster, so one connection hears them all; where
 * there is no watcher, one connection a shard holds a sharded subscription in each of its slots, which the server takes
 * back ({@code sunsubscribe}) when the slot leaves the shard.
 */
final class PushChannels {

    private static final InternalLogger logger = InternalLoggerFactory.getInstance(PushChannels.class);

    private static final String[] CHANNELS = { Announcement.MOVED, Announcement.FAILOVER, Announcement.DIGEST };

    /** A watcher's heart beats each second; after this long without, it is gone. */
    private static final long GONE_MS = 3000;

    /** So long a new client listens before it believes that there is no watcher. */
    private static final long LISTEN_MS = 2500;

    /** A client of many listens for a heartbeat so often. */
    private static final Duration CHECK = Duration.ofMinutes(5);

    /** Subscriptions that are made at a time, and how long before the next. */
    private static final int BATCH = 64;

    private static final long BATCH_PAUSE_MS = 20;

    /** A server that did not say how many listen is asked again. */
    private static final long COUNT_AGAIN_MS = 5000;

    private static final long REOPEN_MAX_MS = 10_000;

    /** So many heartbeats before the servers' subscriptions are given up: a watcher may come and go. */
    private static final int BEATS = 10;

    /** A link that says nothing for so long is asked whether it lives. */
    private static final Duration QUIET = Duration.ofMinutes(5);

    /** A user or a server may be another one by then. */
    private static final Duration DENIED = Duration.ofHours(1);

    private final TopologyAgent agent;

    private final Push push;

    private StatefulRedisPubSubConnection<String, String> watcherLink;

    /** Where it goes. */
    private String watcherAt;

    private boolean opening;

    private int failures;

    private volatile boolean watched;

    private long beatAt;

    private int beats;

    /** Whether the heartbeat is not listened to just now, as one of many. */
    private boolean deaf;

    private boolean checking;

    private volatile boolean serversOn;

    /** The servers do not know sharded subscriptions, or this user may not use them. */
    private volatile boolean denied;

    /** By the shard's master. */
    private final Map<String, Shard> shards = new HashMap<>();

    private volatile boolean complete;

    private Boolean valkey;

    PushChannels(TopologyAgent agent) {
        this.agent = agent;
        this.push = agent.options.getPush();
    }

    Source source() {
        if (watched) {
            return Source.WATCHER;
        }
        return serversOn && !denied ? Source.SERVERS : Source.POLLING;
    }

    boolean complete() {
        return watched || (serversOn && !denied && complete);
    }

    /** Whether there is no need to poll often. */
    boolean isTold() {
        return complete();
    }

    void start() {
        if (push == Push.AUTO || push == Push.WATCHER) {
            openWatcherLink();
            agent.schedule(LISTEN_MS, () -> {
                if (!watched) {
                    startServers();
                }
            });
            tick();
        }
        if (push == Push.SERVERS) {
            startServers();
        }
    }

    // The watcher.

    private void openWatcherLink() {
        if (opening || watcherLink != null) {
            return;
        }
        List<Node> sources = agent.sources();
        if (sources.isEmpty()) {
            agent.schedule(1000, this::openWatcherLink);
            return;
        }
        // Another one each time that it fails.
        Node node = sources.get(Math.min(failures, sources.size() - 1));
        opening = true;
        listen(node, new Listener() {

            @Override
            public void message(String channel, String text) {
                agent.execute(() -> agent.announced(channel, text));
            }

        }, this::watcherLinkClosed).whenCompleteAsync((connection, error) -> {
            opening = false;
            if (error != null || !connection.isOpen()) {
                if (error == null) {
                    connection.closeAsync();
                }
                watcherLinkClosed(null);
                return;
            }
            if (agent.isClosed()) {
                connection.closeAsync();
                return;
            }
            watcherLink = connection;
            watcherAt = node.address();
            connection.async().subscribe(CHANNELS).whenCompleteAsync((ok, refused) -> {
                if (refused == null) {
                    failures = 0;
                    checkNowAndThen(connection, node.address(), () -> connection == watcherLink, this::watcherLinkClosed);
                } else if (Failures.isRefusal(refused)) {
                    agent.logOnce("watcher", "This user may not listen to __cluster__:* (ACL: &__cluster__:* +subscribe): "
                            + "a watcher will not be heard");
                } else {
                    connection.closeAsync();
                }
            }, agent.loop);
        }, agent.loop);
    }

    private void watcherLinkClosed(StatefulRedisPubSubConnection<?, ?> which) {
        if (which != null && which != watcherLink) {
            return;
        }
        watcherLink = null;
        if (which != null) {
            which.closeAsync(); // also one that the server closed: Lettuce keeps it until then
        }
        failures = Math.min(failures + 1, 30);
        agent.schedule(Math.min(REOPEN_MAX_MS, 100L << Math.min(failures, 10)), this::openWatcherLink);
        if (which != null) {
            // What was said meanwhile nobody heard.
            agent.request("a broken link to the watcher's channels", List.of(), Duration.ofMillis(200));
        }
    }

    void heartbeat() {
        beatAt = System.nanoTime();
        beats++;
        checking = false;
        if (!watched) {
            watched = true;
            logger.info("A watcher tells of changes");
        }
        if (beats >= BEATS && serversOn && push == Push.AUTO) {
            stopServers();
        }
        if (beats % 5 == 3) {
            countListeners();
        }
    }

    private void countListeners() {
        Node node = agent.known().at(watcherAt);
        if (node == null) {
            return;
        }
        agent.links.ask(agent.uri(node), TopologyAgent.PATIENCE, commands -> commands.pubsubNumsub(Announcement.DIGEST,
                Announcement.MOVED))
                .whenCompleteAsync((counts, error) -> {
                    Long listeners = error == null ? counts.get(Announcement.DIGEST) : null;
                    Long all = error == null ? counts.get(Announcement.MOVED) : null;
                    if (listeners == null || all == null) {
                        return;
                    }
                    // Clients of many do not listen to heartbeats all the time, but to moves.
                    agent.crowd(all * Math.max(1, agent.known().nodes().size() / 2));
                    if (listeners > agent.options.getHeartbeatListenersMax() && watcherLink != null && !deaf) {
                        deaf = true;
                        watcherLink.async().unsubscribe(Announcement.DIGEST);
                        long check = CHECK.toMillis();
                        agent.schedule(check / 2 + agent.random.nextLong(check), this::listenAgain);
                    }
                }, agent.loop);
    }

    private void listenAgain() {
        deaf = false;
        beats = 0;
        beatAt = System.nanoTime();
        if (watcherLink != null) {
            watcherLink.async().subscribe(Announcement.DIGEST);
        }
    }

    private void tick() {
        if (watched && !deaf && System.nanoTime() - beatAt > TimeUnit.MILLISECONDS.toNanos(GONE_MS)) {
            if (checking) {
                checking = false;
                watched = false;
                beats = 0;
                agent.logOnce("gone", "No watcher is heard whose view is ours; " + (push == Push.AUTO ? "listening to the servers themselves"
                        : "polling"));
                agent.request("a watcher that is silent", List.of(), Duration.ofMillis(500));
                if (push == Push.AUTO) {
                    startServers();
                }
                agent.schedule(1000, this::tick);
                return;
            }
            // Is it the watcher, or our own link?
            checking = true;
            StatefulRedisPubSubConnection<String, String> link = watcherLink;
            if (link != null) {
                link.async().ping().toCompletableFuture().orTimeout(900, TimeUnit.MILLISECONDS).whenCompleteAsync((ok, error) -> {
                    if (error != null) {
                        checking = false;
                        beatAt = System.nanoTime();
                        link.closeAsync();
                    }
                }, agent.loop);
            }
        }
        agent.schedule(1000, this::tick);
    }

    // The servers.

    private void startServers() {
        if (push == Push.WATCHER || serversOn || denied) {
            return;
        }
        serversOn = true;
        changed();
    }

    private void stopServers() {
        serversOn = false;
        shards.values().forEach(Shard::close);
        shards.clear();
        complete = false;
    }

    private void deny(Throwable error) {
        if (!denied) {
            denied = true;
            stopServers();
            agent.schedule(DENIED.toMillis(), () -> {
                denied = false;
                if (push == Push.SERVERS || (push == Push.AUTO && !watched)) {
                    startServers();
                }
            });
            logger.info("The servers do not tell of slots that move ({}): they need Redis 7.0 or Valkey, and +ssubscribe "
                    + "&unslow:* for this user; polling", Failures.words(error));
        }
    }

    /** The topology may be another one. */
    void changed() {
        if (!serversOn || denied) {
            return;
        }
        Topology known = agent.known();
        shards.entrySet().removeIf(entry -> {
            Node master = known.byId(entry.getKey());
            boolean gone = master == null || !master.master() || master.slots().isEmpty();
            if (gone) {
                entry.getValue().close();
            }
            return gone;
        });
        known.masters().forEach(master -> shards.computeIfAbsent(master.id(), Shard::new).update());
        judge();
    }

    private void judge() {
        complete = !shards.isEmpty() && shards.values().stream().allMatch(Shard::isComplete);
    }

    void close() {
        stopServers();
        if (watcherLink != null) {
            watcherLink.closeAsync();
        }
    }

    /** The subscriptions of one shard, on one connection. */
    private final class Shard {

        private final String master;

        private StatefulRedisPubSubConnection<String, String> connection;

        private String at;

        private boolean busy;

        private boolean closed;

        private int failed;

        /** This client listens to a single slot: there are many, or nobody has counted yet. */
        private boolean one = true;

        private boolean counted;

        private final BitSet subscribed = new BitSet(Topology.SLOTS);

        /** Taken back by the server, not yet looked at. */
        private final BitSet lost = new BitSet(Topology.SLOTS);

        private Shard(String master) {
            this.master = master;
        }

        private BitSet wanted() {
            Node node = agent.known().byId(master);
            BitSet wanted = node == null ? new BitSet() : (BitSet) node.slots().clone();
            if (one && !wanted.isEmpty()) {
                BitSet held = (BitSet) subscribed.clone();
                held.and(wanted);
                // The same one as everybody's, so that they count each other; not the lowest, which moves first in a reshard.
                int nth = (int) Long.remainderUnsigned(TopologyAgent.mix(master.hashCode()), wanted.cardinality());
                int slot = held.isEmpty() ? wanted.stream().skip(nth).findFirst().orElse(0) : held.nextSetBit(0);
                wanted.clear();
                wanted.set(slot);
            }
            return wanted;
        }

        private boolean isComplete() {
            BitSet missing = wanted();
            missing.andNot(subscribed);
            return connection != null && counted && missing.isEmpty();
        }

        private void update() {
            if (busy || closed) {
                return;
            }
            if (connection == null) {
                open();
                return;
            }
            Node node = agent.known().at(at);
            if (node == null || (!node.id().equals(master) && !master.equals(node.masterId()))) {
                broken(connection); // it belongs to another shard now
                return;
            }
            BitSet missing = wanted();
            missing.andNot(subscribed);
            if (!missing.isEmpty()) {
                busy = true;
                subscribe(missing, 0);
            }
        }

        private void open() {
            Node lead = agent.known().byId(master);
            if (lead == null) {
                return;
            }
            busy = true;
            isValkey().whenCompleteAsync((valkey, error) -> {
                // A promoted replica of Valkey takes its subscriptions back itself; one of Redis is silent.
                List<Node> replicas = agent.known().replicasOf(master).stream().filter(n -> !n.failed() && n.connected()).toList();
                boolean there = error == null && valkey && !replicas.isEmpty() && failed % 2 == 0;
                int nth = (int) Long.remainderUnsigned(TopologyAgent.mix(agent.options.getSeed()), Math.max(1, replicas.size()));
                connect(there ? replicas.get(nth) : lead);
            }, agent.loop);
        }

        private void connect(Node node) {
            listen(node, new Listener() {

                @Override
                public void sunsubscribed(String channel, long count) {
                    agent.execute(() -> takenBack(ShardChannels.slotOf(channel)));
                }

            }, this::broken).whenCompleteAsync((opened, error) -> {
                busy = false;
                boolean late = closed || connection != null;
                if (opened != null && (late || !opened.isOpen())) {
                    opened.closeAsync();
                }
                if (late) {
                    return;
                }
                if (error != null || !opened.isOpen()) {
                    broken(null);
                } else {
                    connection = opened;
                    at = node.address();
                    counted = false;
                    one = true;
                    update();
                    checkNowAndThen(opened, at, () -> opened == connection, this::broken);
                }
            }, agent.loop);
        }

        /** With one subscription made, some time later, so that many that come at once count each other. */
        private void count() {
            counted = true;
            StatefulRedisPubSubConnection<String, String> link = connection;
            int slot = subscribed.nextSetBit(0);
            if (link == null || slot < 0) {
                counted = false;
                return;
            }
            String channel = ShardChannels.of(slot);
            agent.schedule(50 + agent.random.nextLong(200), () -> {
                if (closed || link != connection) {
                    return;
                }
                Node node = agent.known().at(at);
                if (node == null) {
                    return;
                }
                agent.links.ask(agent.uri(node), TopologyAgent.PATIENCE, commands -> commands.pubsubShardNumsub(channel))
                        .whenCompleteAsync((counts, error) -> {
                    if (closed || link != connection) {
                        return;
                    }
                    if (error != null && !Failures.isReply(error)) {
                        judge();
                        agent.schedule(COUNT_AGAIN_MS, () -> {
                            if (link == connection) {
                                count();
                            }
                        });
                        return;
                    }
                    if (error != null) {
                        // How many there are is not known: one slot, as if there were many.
                        agent.logOnce("shardnumsub", "Cannot count who listens to a shard (" + Failures.words(error)
                                + "; ACL: +pubsub|shardnumsub): listening to one slot of each");
                        judge();
                        return;
                    }
                    long others = counts.getOrDefault(channel, 1L) - 1;
                    agent.crowd(others + 1);
                    one = others >= agent.options.getSubscribersMax();
                    judge();
                    agent.schedule(others < 20 ? 0 : agent.random.nextLong(others * 20), this::update);
                }, agent.loop);
            });
        }

        private void subscribe(BitSet missing, int from) {
            StatefulRedisPubSubConnection<String, String> link = connection;
            List<CompletableFuture<?>> batch = new ArrayList<>();
            int slot = missing.nextSetBit(from);
            // One write for all: the event loop is the application's.
            link.setAutoFlushCommands(false);
            try {
                for (; slot >= 0 && batch.size() < BATCH; slot = missing.nextSetBit(slot + 1)) {
                    int number = slot;
                    RedisFuture<Void> future = link.async().ssubscribe(ShardChannels.of(slot));
                    batch.add(future.toCompletableFuture().thenRunAsync(() -> {
                        if (link == connection) {
                            subscribed.set(number);
                        }
                    }, agent.loop));
                }
            } finally {
                link.setAutoFlushCommands(true);
                link.flushCommands();
            }
            int rest = slot;
            CompletableFuture.allOf(batch.toArray(new CompletableFuture<?>[0])).orTimeout(5, TimeUnit.SECONDS)
                    .whenCompleteAsync((ok, error) -> {
                        if (closed || link != connection) {
                            return; // whoever broke the link goes on from there
                        }
                        if (error != null && Failures.isRefusal(error)) {
                            deny(error);
                        } else if (error != null) {
                            // A slot that is not here any more, or a node that does not answer: look, and go on from there.
                            busy = false;
                            if (!link.isOpen()) {
                                broken(link);
                                return;
                            }
                            agent.request("a subscription that failed", List.of(at), Duration.ofMillis(200));
                            agent.schedule(500, this::update);
                        } else if (rest >= 0) {
                            agent.schedule(BATCH_PAUSE_MS, () -> {
                                if (link == connection) {
                                    subscribe(missing, rest);
                                }
                            });
                        } else {
                            busy = false;
                            failed = 0;
                            if (!counted) {
                                count();
                            }
                            update(); // what came to this shard meanwhile
                            judge();
                        }
                    }, agent.loop);
        }

        private void takenBack(int slot) {
            if (slot < 0 || !subscribed.get(slot)) {
                return;
            }
            subscribed.clear(slot);
            if (lost.isEmpty()) {
                // Those that come in the same moment are one change.
                agent.execute(this::look);
            }
            lost.set(slot);
        }

        private void look() {
            lost.clear();
            complete = false;
            Set<String> first = new LinkedHashSet<>();
            if (at != null) {
                first.add(at); // it knows by now
            }
            if (subscribed.isEmpty()) {
                // The whole shard: a failover.
                agent.known().replicasOf(master).stream().limit(2).forEach(replica -> first.add(replica.address()));
            }
            agent.request("slots that left their shard", List.copyOf(first), agent.spread());
        }

        private void broken(StatefulRedisPubSubConnection<?, ?> which) {
            if (closed || (which != null && which != connection)) {
                return;
            }
            connection = null;
            if (which != null) {
                which.closeAsync(); // also one that the server closed: Lettuce keeps it until then
            }
            subscribed.clear();
            busy = true;
            failed++;
            complete = false;
            long wait = Math.min(REOPEN_MAX_MS, 100L << Math.min(failed, 10));
            agent.schedule(wait / 2 + agent.random.nextLong(wait), () -> {
                busy = false;
                update();
            });
            if (which != null) {
                agent.request("a broken link to a shard", List.of(), Duration.ofMillis(200));
            }
        }

        private void close() {
            closed = true;
            if (connection != null) {
                connection.closeAsync();
            }
        }

    }

    /** Asked once, of a node that is asked for the topology anyway. */
    private CompletableFuture<Boolean> isValkey() {
        List<Node> sources = agent.sources();
        if (valkey != null || sources.isEmpty()) {
            return CompletableFuture.completedFuture(valkey != null && valkey);
        }
        return agent.links.ask(agent.uri(sources.get(0)), TopologyAgent.PATIENCE, commands -> commands.info("server"))
                .thenApplyAsync(info -> {
                    valkey = info.contains("valkey_version");
                    return valkey;
                }, agent.loop);
    }

    /** A path that was forgotten on the way says nothing for ever, and who left the cluster hears nothing any more. */
    private void checkNowAndThen(StatefulRedisPubSubConnection<String, String> link, String at, BooleanSupplier used,
            Closed broken) {
        agent.schedule(agent.random.nextLong(2 * QUIET.toMillis()), () -> {
            if (!used.getAsBoolean()) {
                return;
            }
            if (agent.known().at(at) == null) {
                broken.of(link);
                return;
            }
            link.async().ping().toCompletableFuture().orTimeout(2, TimeUnit.SECONDS).whenCompleteAsync((ok, error) -> {
                if (error != null && !Failures.isReply(error)) {
                    broken.of(link);
                } else {
                    checkNowAndThen(link, at, used, broken);
                }
            }, agent.loop);
        });
    }

    private abstract static class Listener extends RedisPubSubAdapter<String, String> {
    }

    private interface Closed {

        void of(StatefulRedisPubSubConnection<?, ?> connection);

    }

    private CompletableFuture<StatefulRedisPubSubConnection<String, String>> listen(Node node, Listener listener, Closed closed) {
        return agent.links.listen(agent.uri(node), TopologyAgent.PATIENCE).thenApply(connection -> {
            connection.addListener(listener);
            connection.addListener(new RedisConnectionStateListener() {

                @Override
                public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
                    agent.execute(() -> closed.of(connection));
                }

            });
            return connection;
        });
    }

}
