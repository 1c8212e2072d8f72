package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Announcement.Heartbeat;
import io.github.unslow.lettuce.Announcement.Moved;
import io.github.unslow.lettuce.Announcement.Promoted;
import io.github.unslow.lettuce.Topology.Node;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.internal.logging.InternalLogger;
import io.netty.util.internal.logging.InternalLoggerFactory;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Keeps one client's topology: asks few nodes, merges what they say, believes announcements as far as they can be true,
 * and hands what changed to Lettuce.
 *
 * <p>Everything happens on one thread of the client's own {@code eventExecutorGroup}; only {@link #refresh()} and
 * {@link #load} may be called from elsewhere.
 */
final class TopologyAgent {

    private static final InternalLogger logger = InternalLoggerFactory.getInstance(TopologyAgent.class);

    /** For one question to one node, its connection included. */
    static final Duration PATIENCE = Duration.ofSeconds(1);

    /** Refreshes that announcements may cause at once, and how soon there is another one. */
    private static final int BUDGET = 20;

    private static final Duration BUDGET_REFILL = Duration.ofMillis(500);

    /** After so long without an answer another node is asked as well. */
    private static final long HURRY_MS = 150;

    /** Redirections and reconnects may cause a refresh so often; less while nothing comes of it. */
    private static final long TRIGGER_MS = 100;

    private static final long TRIGGER_MAX_MS = 5000;

    /** The longest time between two refreshes for a digest that goes on differing. */
    private static final Duration DISAGREEMENT_MAX = Duration.ofSeconds(60);

    /** What is known outranks older views for so long without anybody who confirms it. */
    private static final Duration UNCONFIRMED_MAX = Duration.ofSeconds(60);

    /** Links that are not needed are closed after it. */
    private static final Duration IDLE = Duration.ofSeconds(30);

    /** Watchers whose heartbeats are told apart. */
    private static final int WATCHERS = 8;

    /** What the agent changes. */
    interface Client {

        /** Nodes and routes to be used from now on. */
        void apply(List<RedisClusterNode> nodes);

        /** Where to begin, and the credentials, TLS and timeouts of every node. */
        List<RedisURI> seeds();

    }

    final TopologyOptions options;

    final NodeLinks links;

    final EventExecutor loop;

    final Random random;

    private final Client client;

    private final PushChannels push;

    private final HungNodes hung;

    private volatile Topology known = Topology.EMPTY;

    private CompletableFuture<Void> running;

    private CompletableFuture<Void> next;

    private final Set<String> nextFirst = new LinkedHashSet<>();

    /** Addresses that announcements named since the last refresh: they know best whether it was true. */
    private final Set<String> told = new LinkedHashSet<>();

    /** The refresh that is requested: one that is due earlier takes its place. */
    private Object requested;

    private long requestedFor;

    /** When the budget has one for it. */
    private long affordable;

    private final Set<String> requestedFirst = new LinkedHashSet<>();

    private int budget = BUDGET;

    private long budgetAt = System.nanoTime();

    private long triggeredAt = System.nanoTime() - TimeUnit.SECONDS.toNanos(60);

    private long triggerMs = TRIGGER_MS;

    /** The refresh that waits for its time. */
    private CompletableFuture<Void> triggered;

    /** Announcements that could not be true, since the last change. */
    private int doubts;

    /** Since when what is known has outranked every view; 0 when it does not. */
    private long unconfirmedSince;

    private long refreshedAt;

    private long periodMs;

    private final Map<String, Watcher> watchers = new LinkedHashMap<>();

    /** Refreshes that somebody waits for. */
    private final Set<CompletableFuture<?>> open = ConcurrentHashMap.newKeySet();

    private final Map<String, Long> logged = new HashMap<>();

    private volatile Duration patience = PATIENCE;

    private boolean started;

    private volatile boolean closed;

    private volatile long refreshes;

    private volatile long announcements;

    TopologyAgent(TopologyOptions options, NodeLinks links, EventExecutor loop, SilenceWatch silence, Client client) {
        this.options = options;
        this.links = links;
        this.loop = loop;
        this.client = client;
        this.random = new Random(options.getSeed());
        this.push = new PushChannels(this);
        this.hung = new HungNodes(this, silence);
    }

    Topology known() {
        return known;
    }

    TopologyStatus status() {
        return new TopologyStatus(push.source(), push.complete(), refreshes, announcements, known.nodes().size());
    }

    /**
     * The first view: from a seed, and from those that are asked later on.
     *
     * @param timeout for one seed
     */
    CompletableFuture<List<RedisClusterNode>> load(Duration timeout) {
        if (timeout.compareTo(patience) > 0) {
            patience = timeout;
        }
        return refresh(List.of()).thenApplyAsync(done -> {
            start();
            return partitions();
        }, loop);
    }

    /**
     * For redirections and reconnects, of which there may be thousands: a refresh now, or soon when there was one just now;
     * the longer the less comes of it.
     */
    CompletableFuture<Void> refreshForTrigger() {
        CompletableFuture<Void> done = opened();
        execute(() -> {
            if (triggered != null) {
                forward(triggered, done);
                return;
            }
            long since = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - triggeredAt);
            if (since > TRIGGER_MAX_MS) {
                triggerMs = TRIGGER_MS;
            }
            triggered = new CompletableFuture<>();
            forward(triggered, done);
            schedule(Math.max(0, triggerMs - since), () -> {
                CompletableFuture<Void> waited = triggered;
                Topology before = known;
                triggered = null;
                triggeredAt = System.nanoTime();
                refresh(List.of()).whenCompleteAsync((ok, error) -> {
                    boolean changed = known.differsFrom(before);
                    triggerMs = changed ? TRIGGER_MS : Math.min(TRIGGER_MAX_MS, triggerMs * 2);
                    if (error == null) {
                        if (!changed) {
                            apply(); // Lettuce may have kept a connection that it looked up while a route changed
                        }
                        waited.complete(null);
                    } else {
                        waited.completeExceptionally(Failures.cause(error));
                    }
                }, loop);
            });
        }, done);
        return done;
    }

    /** Nodes and routes as Lettuce wants them. */
    private List<RedisClusterNode> partitions() {
        return known.toPartitions(settings(), hung.left(), order()).stream().filter(node -> !hung.isReplaced(node.getNodeId()))
                .toList();
    }

    private CompletableFuture<Void> opened() {
        CompletableFuture<Void> done = new CompletableFuture<>();
        open.add(done);
        done.whenComplete((ok, error) -> open.remove(done));
        return done;
    }

    private void start() {
        if (started || closed) {
            return;
        }
        started = true;
        push.start();
        hung.start();
        // The first anywhere in the period: clients that start together must not ask together.
        refreshedAt = System.nanoTime() - TimeUnit.MILLISECONDS.toNanos(
                (long) (options.getRefreshPeriod().toMillis() * random.nextDouble()));
        periodMs = options.getRefreshPeriod().toMillis();
        schedule(1000, this::periodically);
    }

    /** Ends everything; who waits for a refresh is told. */
    void close() {
        Runnable ending = () -> {
            push.close();
            closed = true;
            open.forEach(each -> each.completeExceptionally(new RedisException("The client is shut down")));
        };
        if (loop.isShuttingDown() || loop.inEventLoop()) {
            ending.run();
        } else {
            loop.submit(ending).awaitUninterruptibly(1000);
        }
    }

    /** How many clients there seem to be. */
    void crowd(long clients) {
        hung.crowd(clients);
    }

    /** In which clients ask for what all of them heard at once: none for a few, seconds for thousands. */
    Duration spread() {
        return Duration.ofMillis(Math.min(2000, hung.crowd() / 4));
    }

    boolean isClosed() {
        return closed;
    }

    /** One refresh at a time; who comes while one is under way gets the next one. */
    CompletableFuture<Void> refresh(List<String> first) {
        CompletableFuture<Void> done = opened();
        execute(() -> {
            if (running != null) {
                nextFirst.addAll(first);
                if (next == null) {
                    next = new CompletableFuture<>();
                }
                forward(next, done);
                return;
            }
            running = new CompletableFuture<>();
            forward(running, done);
            begin(first);
        }, done);
        return done;
    }

    private static void forward(CompletableFuture<Void> from, CompletableFuture<Void> to) {
        from.whenComplete((ok, error) -> {
            if (error == null) {
                to.complete(null);
            } else {
                to.completeExceptionally(Failures.cause(error));
            }
        });
    }

    private void begin(List<String> first) {
        refreshes++;
        Map<String, RedisURI> candidates = new LinkedHashMap<>();
        Stream.concat(first.stream(), told.stream()).limit(4).forEach(address -> add(candidates, address));
        boolean hinted = !candidates.isEmpty();
        int wanted = hinted ? candidates.size() : options.getSampleSize();
        told.clear();
        sources().forEach(node -> add(candidates, node.address()));
        for (RedisURI seed : client.seeds()) {
            candidates.putIfAbsent(seed.getHost() + ":" + seed.getPort(), seed);
        }
        boolean blank = known.isEmpty();
        CompletableFuture<Void> done = running;
        // The first of some seeds that answers; later so many as are wanted.
        new Survey(candidates, blank ? 1 : wanted, blank ? 3 : wanted).result.whenCompleteAsync((views, error) -> {
            if (error != null) {
                finish(done, error);
                return;
            }
            List<Topology> ours = views.stream().filter(view -> !ViewMerge.isOther(known, view)).toList();
            if (ours.isEmpty() && hinted) {
                begin(List.of()); // whoever was named has left
                return;
            }
            if (ours.isEmpty()) {
                replaced(candidates, done);
                return;
            }
            merge(ours);
            if (blank && known.nodes().size() > 1) {
                begin(List.of()); // a seed may be the one node that is behind
            } else {
                patience = PATIENCE;
                finish(done, null);
            }
        }, loop).exceptionally(error -> {
            execute(() -> finish(done, error));
            return null;
        });
    }

    /**
     * Those that answered know none of the nodes we know. One that was emptied says the same; so everybody is asked, and
     * another cluster is believed in when nobody of ours answers any more, a seed is in it, and it has slots.
     */
    private void replaced(Map<String, RedisURI> candidates, CompletableFuture<Void> done) {
        Survey everybody = new Survey(candidates, candidates.size(), candidates.size());
        everybody.result.whenCompleteAsync((views, error) -> {
            if (error != null) {
                finish(done, error);
                return;
            }
            List<Topology> ours = views.stream().filter(view -> !ViewMerge.isOther(known, view)).toList();
            // What a seed says, and those that are in the same cluster as it: addresses may have gone to several.
            Topology bySeed = client.seeds().stream().map(seed -> everybody.answered.get(seed.getHost() + ":" + seed.getPort()))
                    .filter(view -> view != null && view.covered() > 0).findFirst().orElse(Topology.EMPTY);
            Topology other = bySeed.isEmpty() ? bySeed : ViewMerge.merge(Topology.EMPTY,
                    views.stream().filter(view -> !ViewMerge.isOther(bySeed, view)).toList());
            if (!ours.isEmpty()) {
                merge(ours);
            } else if (!other.isEmpty()) {
                logger.warn("None of the known nodes is in the cluster that answers at their addresses: taking it for another "
                        + "one that has replaced it");
                change(other);
            } else {
                logOnce("other", "Ignoring a node that knows none of the others: it was emptied, or has another's address");
            }
            finish(done, null);
        }, loop).exceptionally(error -> {
            execute(() -> finish(done, error));
            return null;
        });
    }

    private void finish(CompletableFuture<Void> done, Throwable error) {
        if (running != done || done.isDone()) {
            return;
        }
        running = null;
        refreshedAt = System.nanoTime();
        CompletableFuture<Void> following = next;
        if (following != null) {
            next = null;
            List<String> first = List.copyOf(nextFirst);
            nextFirst.clear();
            forward(refresh(first), following);
        }
        if (error == null) {
            done.complete(null);
        } else {
            logOnce("refresh", "Cannot refresh the topology: " + Failures.cause(error).getMessage());
            done.completeExceptionally(Failures.cause(error));
        }
    }

    private void add(Map<String, RedisURI> candidates, String address) {
        int colon = address.lastIndexOf(':');
        RedisURI uri = Topology.uri(settings(), address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        candidates.putIfAbsent(address, uri);
    }

    RedisURI settings() {
        return client.seeds().get(0);
    }

    RedisURI uri(Node node) {
        return Topology.uri(settings(), node.host(), node.port());
    }

    /** Nodes to ask, this client's own order: replicas first, those that fail last. */
    List<Node> sources() {
        boolean replicasFirst = options.getSources() == TopologyOptions.Sources.REPLICAS;
        Comparator<Node> order = Comparator.comparing((Node n) -> n.failed() || n.suspected() || !n.connected())
                .thenComparing(n -> hung.isHung(n.id())).thenComparing(n -> replicasFirst && n.master())
                .thenComparing(n -> mix(n.id().hashCode() ^ options.getSeed()));
        return known.nodes().stream().sorted(order).toList();
    }

    /** What Lettuce is to begin with: nodes that are well, each client in an order of its own. */
    private Comparator<Node> order() {
        return Comparator.comparing((Node n) -> n.failed() || n.suspected() || hung.isHung(n.id()))
                .thenComparing(n -> mix(n.id().hashCode() ^ options.getSeed()));
    }

    /** Spreads close numbers: the finalizer of SplitMix64. */
    static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    private void merge(List<Topology> views) {
        Topology merged = ViewMerge.merge(known, views);
        Topology said = ViewMerge.merge(Topology.EMPTY, views);
        if (known.isEmpty() || !merged.differsFrom(said)) {
            unconfirmedSince = 0;
        } else if (unconfirmedSince == 0) {
            unconfirmedSince = System.nanoTime();
            schedule(UNCONFIRMED_MAX.toMillis() + 1000, () -> request("what nobody confirms", List.of(), Duration.ofSeconds(1)));
        } else if (System.nanoTime() - unconfirmedSince > UNCONFIRMED_MAX.toNanos() && said.covered() * 2 > known.covered()) {
            logOnce("unconfirmed", "Nobody confirms what was known for a minute: epochs went back; believing the nodes");
            unconfirmedSince = 0;
            merged = said;
        }
        change(merged);
    }

    private void change(Topology now) {
        Topology before = known;
        boolean changed = now.differsFrom(before);
        known = now;
        before.nodes().stream().filter(node -> now.at(node.address()) == null).forEach(node -> links.forget(node.address()));
        if (changed) {
            doubts = 0;
        }
        if ((hung.changed(before, now) || changed) && !before.isEmpty()) {
            apply();
        }
        if (started) {
            push.changed();
        }
    }

    /** Hands nodes and routes to Lettuce; also when only the nodes that are not read from changed. */
    void apply() {
        if (!closed) {
            client.apply(partitions());
        }
    }

    /** An announcement, from anybody who may publish. */
    void announced(String channel, String text) {
        Announcement announcement;
        try {
            announcement = Announcement.parse(channel, text);
        } catch (IllegalArgumentException e) {
            doubt("Ignoring a message on " + channel + " that is no announcement; looking myself");
            return;
        }
        announcements++;
        logger.debug("Announced: {}", announcement);
        if (announcement instanceof Heartbeat heartbeat) {
            compare(heartbeat);
        } else if (announcement instanceof Moved moved) {
            Node to = known.at(moved.address());
            if (to == null || !to.master()) {
                doubt("An announcement names a master that is not known; looking myself");
            } else {
                told.add(to.address());
                change(known.moved(moved.slots(), to));
            }
        } else if (announcement instanceof Promoted promoted) {
            Node to = known.at(promoted.address());
            Node old = to == null ? null : known.byId(to.masterId());
            if (to != null && to.master()) {
                return; // known already
            }
            if (old == null || !old.slots().equals(promoted.slots())) {
                doubt("An announcement promotes a node that is no replica of those slots' master; looking myself");
            } else {
                told.add(to.address());
                change(known.promoted(promoted.slots(), to));
            }
        }
    }

    /** Nodes are asked; the longer after the more of it came to nothing. */
    private void doubt(String text) {
        logOnce("doubt", text);
        request("an announcement that cannot be", List.of(), Duration.ofMillis(200L << Math.min(doubts++, 8)));
    }

    private void compare(Heartbeat heartbeat) {
        if (watchers.size() >= WATCHERS) {
            watchers.keySet().retainAll(Set.of(heartbeat.watcher()));
        }
        Watcher watcher = watchers.computeIfAbsent(heartbeat.watcher(), name -> new Watcher(heartbeat.sequence()));
        if (heartbeat.sequence() == watcher.sequence - 1) {
            return; // overtaken on its way through another node
        }
        boolean gap = heartbeat.sequence() > watcher.sequence + 1;
        watcher.sequence = heartbeat.sequence();
        watcher.digest = heartbeat.digest();
        if (watcher.digest.equals(digest())) {
            watcher.disagreements = 0;
            push.heartbeat(); // one whose topology is another one tells us nothing
            return;
        }
        // A watcher that names nodes otherwise than we do differs for ever; what it told and we missed is asked for at once.
        long wait = gap ? 50 : Math.min(DISAGREEMENT_MAX.toMillis(), 100L << Math.min(watcher.disagreements, 16));
        watcher.disagreements++;
        if (!watcher.comparing) {
            watcher.comparing = true;
            schedule(wait / 2 + random.nextLong(wait), () -> {
                watcher.comparing = false;
                if (watcher.disagreements > 0 && !watcher.digest.equals(digest())) {
                    request("a digest that differs", List.of(), Duration.ZERO);
                }
            });
        }
        if (watcher.disagreements == 8) {
            logOnce("digest", "A watcher's view goes on differing from what the nodes say; trusting the nodes");
        }
    }

    private String digest() {
        return known.digest(settings().isSsl());
    }

    /** One of those that publish. There should be one. */
    private static final class Watcher {

        private long sequence;

        private String digest;

        private int disagreements;

        private boolean comparing;

        private Watcher(long sequence) {
            this.sequence = sequence;
        }

    }

    /**
     * A refresh within {@code spread}, together with others that are wanted meanwhile; later when there were many of
     * late.
     *
     * @param why for the log
     * @param first addresses that know best
     */
    void request(String why, List<String> first, Duration spread) {
        logger.debug("Refreshing because of {}", why);
        requestedFirst.addAll(first);
        if (closed) {
            return;
        }
        long now = System.nanoTime();
        long wish = now + TimeUnit.MILLISECONDS.toNanos(random.nextLong(Math.max(spread.toMillis(), spread().toMillis()) + 1));
        if (requested == null) {
            affordable = now + TimeUnit.MILLISECONDS.toNanos(spend());
        }
        long due = wish - affordable > 0 ? wish : affordable;
        if (requested != null && requestedFor - due <= 0) {
            return;
        }
        Object mine = new Object();
        requested = mine;
        requestedFor = due;
        schedule(Math.max(0, TimeUnit.NANOSECONDS.toMillis(due - now)), () -> {
            if (requested != mine) {
                return;
            }
            requested = null;
            List<String> addresses = List.copyOf(requestedFirst);
            requestedFirst.clear();
            refresh(addresses);
        });
    }

    /** Milliseconds until there is a refresh to be had; it is taken. */
    private long spend() {
        long now = System.nanoTime();
        long refill = (now - budgetAt) / BUDGET_REFILL.toNanos();
        if (refill > 0) {
            budget = (int) Math.min(BUDGET, budget + refill);
            budgetAt = now;
        }
        if (budget > 0) {
            budget--;
            return 0;
        }
        return BUDGET_REFILL.toMillis();
    }

    /** Each second: whether the time since the last refresh is over that holds now, told or not. */
    private void periodically() {
        long base = (push.isTold() ? options.getRefreshPeriodWithPush() : options.getRefreshPeriod()).toMillis();
        if (Math.abs(base - periodMs) > base / 5) {
            periodMs = base;
        }
        if (running == null && System.nanoTime() - refreshedAt > TimeUnit.MILLISECONDS.toNanos(periodMs)) {
            periodMs = (long) (base * (0.9 + 0.2 * random.nextDouble()));
            List<Node> sources = sources();
            // While we are told it is a check, of one node at a time.
            refresh(push.isTold() && !sources.isEmpty()
                    ? List.of(sources.get((int) (refreshes % Math.min(options.getSampleSize(), sources.size()))).address())
                    : List.of());
        }
        // Told, nodes that are not listened to are asked once in a while; polled, in each period.
        links.closeIdle(push.isTold() ? IDLE : Duration.ofMillis(base * 3 / 2).plus(IDLE));
        schedule(1000, this::periodically);
    }

    /** One line for each kind of trouble in a minute. */
    void logOnce(String kind, String text) {
        long now = System.nanoTime();
        Long before = logged.get(kind);
        if (before == null || now - before > TimeUnit.MINUTES.toNanos(1)) {
            logged.put(kind, now);
            logger.warn(text);
        } else {
            logger.debug(text);
        }
    }

    void schedule(long delayMs, Runnable task) {
        if (!closed && !loop.isShuttingDown()) {
            loop.schedule(() -> guarded(task), delayMs, TimeUnit.MILLISECONDS);
        }
    }

    private void execute(Runnable task, CompletableFuture<?> done) {
        if (closed || loop.isShuttingDown()) {
            done.completeExceptionally(new RedisException("The client is shut down"));
        } else {
            loop.execute(() -> guarded(task));
        }
    }

    /** Runs something on the agent's own thread. */
    void execute(Runnable task) {
        execute(task, new CompletableFuture<>());
    }

    private void guarded(Runnable task) {
        try {
            if (!closed) {
                task.run();
            }
        } catch (RuntimeException e) {
            logger.error("The topology agent stumbled; it goes on", e);
        }
    }

    /** Asks candidates, some at a time, until enough have answered; one that is slow does not hold up the rest. */
    private final class Survey {

        private final CompletableFuture<List<Topology>> result = new CompletableFuture<>();

        private final Deque<RedisURI> candidates;

        private final int wanted;

        private int parallel;

        private final List<Topology> views = new ArrayList<>();

        private final Map<String, Topology> answered = new HashMap<>();

        private int asking;

        private Throwable last;

        private Survey(Map<String, RedisURI> candidates, int wanted, int parallel) {
            this.candidates = new ArrayDeque<>(candidates.values());
            this.wanted = wanted;
            this.parallel = parallel;
            go();
            hurry();
        }

        private void hurry() {
            schedule(HURRY_MS, () -> {
                if (!result.isDone() && !candidates.isEmpty()) {
                    parallel++;
                    go();
                    hurry();
                }
            });
        }

        private void go() {
            while (!closed && views.size() < wanted && views.size() + asking < parallel && !candidates.isEmpty()) {
                RedisURI uri = candidates.poll();
                asking++;
                links.ask(uri, patience, commands -> commands.clusterNodes()).whenCompleteAsync((text, error) -> {
                    asking--;
                    try {
                        if (error == null) {
                            Topology view = ClusterNodesReply.parse(text, uri.getHost(), uri.getPort());
                            views.add(view);
                            answered.put(uri.getHost() + ":" + uri.getPort(), view);
                        } else {
                            last = error;
                        }
                    } catch (IllegalArgumentException e) {
                        last = e;
                    }
                    go();
                }, loop);
            }
            if (result.isDone()) {
                return;
            }
            if (closed) {
                result.completeExceptionally(new RedisException("The client is shut down"));
            } else if (views.size() >= wanted || (asking == 0 && !views.isEmpty())) {
                result.complete(List.copyOf(views));
            } else if (asking == 0) {
                String why = last == null ? "no address is known" : Failures.words(last) + ": " + Failures.cause(last)
                        .getMessage();
                result.completeExceptionally(new RedisException("no node answers CLUSTER NODES (" + why + ")", last));
            }
        }

    }

}
