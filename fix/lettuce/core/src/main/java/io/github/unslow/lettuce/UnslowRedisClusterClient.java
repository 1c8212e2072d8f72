package io.github.unslow.lettuce;

import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions.RefreshTrigger;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.event.ClusterTopologyChangedEvent;
import io.lettuce.core.cluster.models.partitions.Partitions;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.topology.ClusterTopologyRefresh;
import io.lettuce.core.internal.LettuceAssert;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.SocketAddressResolver;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.stream.StreamSupport;

/**
 * A {@link RedisClusterClient} that does not poll every node, does not go stale, and notices a hung node. It is used like
 * Lettuce's own:
 *
 * <pre class="code">
 * RedisClusterClient client = UnslowRedisClusterClient.create(RedisURI.create("redis://10.0.0.1:7000"));
 * StatefulRedisClusterConnection&lt;String, String&gt; connection = client.connect();
 * </pre>
 *
 * <p>What is different:
 * <ul>
 * <li>One or two replicas are asked for the topology, over a connection that stays, instead of every node over a new one;
 * what they say is merged by config epoch.</li>
 * <li>A watcher ({@code unslow watch --publish}), or without one the servers themselves (Redis 7.0, Valkey), tell of slots
 * that move and masters that are replaced.</li>
 * <li>A node that owes an answer for {@link TopologyOptions#getHungAfter()} is asked whether it lives; while a master does
 * not say so, its replicas are asked whether one of them has been promoted.</li>
 * </ul>
 *
 * <p>{@link ClusterClientOptions} apply as they do to Lettuce; redirections and reconnects that trigger a refresh trigger
 * one of these. A periodic refresh in {@link ClusterTopologyRefreshOptions} is not needed and harmless.
 */
public class UnslowRedisClusterClient extends RedisClusterClient {

    private final ClientResources ownResources;

    private final NodeLinks links;

    private final TopologyAgent agent;

    private volatile boolean initialized;

    /**
     * Creates a client with resources of its own, which are shut down with it.
     *
     * @param uri a node of the cluster, with the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(RedisURI uri) {
        return create(uri, TopologyOptions.create());
    }

    /**
     * Creates a client with resources of its own, which are shut down with it.
     *
     * @param uri a node of the cluster ({@code redis://host:port}), with the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(String uri) {
        return create(RedisURI.create(uri));
    }

    /**
     * Creates a client with resources of its own, which are shut down with it.
     *
     * @param uris nodes of the cluster; the first has the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(Iterable<RedisURI> uris) {
        return create((ClientResources) null, uris, TopologyOptions.create());
    }

    /**
     * Creates a client.
     *
     * @param resources shared resources, which stay with their owner
     * @param uri a node of the cluster ({@code redis://host:port}), with the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(ClientResources resources, String uri) {
        return create(resources, RedisURI.create(uri));
    }

    /**
     * Creates a client.
     *
     * @param resources shared resources, which stay with their owner
     * @param uri a node of the cluster, with the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(ClientResources resources, RedisURI uri) {
        return create(resources, List.of(uri));
    }

    /**
     * Creates a client.
     *
     * @param resources shared resources, which stay with their owner
     * @param uris nodes of the cluster; the first has the credentials and TLS settings of all
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(ClientResources resources, Iterable<RedisURI> uris) {
        LettuceAssert.notNull(resources, "ClientResources must not be null");
        return create(resources, uris, TopologyOptions.create());
    }

    /**
     * Creates a client with resources of its own, which are shut down with it.
     *
     * @param uri a node of the cluster, with the credentials and TLS settings of all
     * @param options how it learns of the cluster
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(RedisURI uri, TopologyOptions options) {
        return create((ClientResources) null, List.of(uri), options);
    }

    /**
     * Creates a client.
     *
     * @param resources shared resources, which stay with their owner; {@code null} for resources of its own
     * @param uris nodes of the cluster; the first has the credentials and TLS settings of all
     * @param options how it learns of the cluster
     * @return a new client.
     */
    public static UnslowRedisClusterClient create(ClientResources resources, Iterable<RedisURI> uris, TopologyOptions options) {
        LettuceAssert.notNull(uris, "RedisURIs must not be null");
        LettuceAssert.notNull(options, "TopologyOptions must not be null");
        ClientResources own = resources == null ? ClientResources.create() : null;
        ClientResources base = resources == null ? own : resources;
        try {
            return new UnslowRedisClusterClient(base, own, new SilenceWatch(base.nettyCustomizer()), uris, options);
        } catch (RuntimeException e) {
            if (own != null) {
                own.shutdown();
            }
            throw e;
        }
    }

    private UnslowRedisClusterClient(ClientResources base, ClientResources own, SilenceWatch silence, Iterable<RedisURI> uris,
            TopologyOptions options) {
        super(watched(base, silence), uris);
        this.ownResources = own;
        this.links = new NodeLinks(base, this::getOptions);
        List<RedisURI> seeds = StreamSupport.stream(uris.spliterator(), false).toList();
        this.agent = new TopologyAgent(options, links, base.eventExecutorGroup().next(), silence, new TopologyAgent.Client() {

            @Override
            public void apply(List<RedisClusterNode> nodes) {
                UnslowRedisClusterClient.this.apply(nodes);
            }

            @Override
            public List<RedisURI> seeds() {
                return seeds;
            }

        });
        // A refresh costs one question: it need not wait for thirty seconds until the next one.
        setOptions(ClusterClientOptions.builder().topologyRefreshOptions(refreshOptions()).build());
    }

    /** The same resources with our customizer and resolver: a copy by {@code mutate()} would have event loops of its own. */
    private static ClientResources watched(ClientResources base, SilenceWatch silence) {
        SocketAddressResolver resolver = silence.mapping(base.socketAddressResolver());
        return (ClientResources) Proxy.newProxyInstance(UnslowRedisClusterClient.class.getClassLoader(),
                new Class<?>[] { ClientResources.class }, (proxy, method, arguments) -> {
                    if (method.getName().equals("nettyCustomizer")) {
                        return silence;
                    }
                    if (method.getName().equals("socketAddressResolver")) {
                        return resolver;
                    }
                    try {
                        return method.invoke(base, arguments);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                });
    }

    /**
     * What {@link ClusterClientOptions} of this client should hold: every trigger but ASK, and no long wait between two: the
     * client itself waits longer the less comes of it. They are its defaults; use them when you set options of your own.
     *
     * @return the options.
     */
    @SuppressWarnings("deprecation") // on by default in Lettuce 7, off in 6
    public static ClusterTopologyRefreshOptions refreshOptions() {
        // An ASK says that nothing has changed yet.
        RefreshTrigger[] triggers = EnumSet.complementOf(EnumSet.of(RefreshTrigger.ASK_REDIRECT)).toArray(new RefreshTrigger[0]);
        return ClusterTopologyRefreshOptions.builder().enableAdaptiveRefreshTrigger(triggers)
                .adaptiveRefreshTriggersTimeout(Duration.ofMillis(100)).refreshTriggersReconnectAttempts(1).build();
    }

    /**
     * @return how this client learns of the cluster at the moment.
     */
    public TopologyStatus getTopologyStatus() {
        return agent.status();
    }

    @Override
    protected ClusterTopologyRefresh createTopologyRefresh() {
        // Called before there is an agent; used after.
        return (seeds, timeout, discovery) -> agent.load(timeout).thenApply(nodes -> {
            Partitions partitions = new Partitions();
            partitions.addAll(nodes);
            partitions.updateCache();
            return Map.of(seeds.iterator().next(), partitions);
        });
    }

    @Override
    protected Partitions determinePartitions(Partitions current, Map<RedisURI, Partitions> views) {
        return views.values().iterator().next(); // merged already
    }

    @Override
    protected CompletableFuture<Partitions> initializePartitions() {
        return super.initializePartitions().thenApply(partitions -> {
            // From here on there is something to change; what changed meanwhile is not lost.
            initialized = true;
            agent.execute(agent::apply);
            return partitions;
        });
    }

    /**
     * {@inheritDoc} Not to be called from the client's own threads (listeners of its event bus): it waits for them.
     */
    @Override
    public void refreshPartitions() {
        if (agent.loop.inEventLoop()) {
            throw new RedisException("refreshPartitions() was called from a thread that it waits for; use refreshPartitionsAsync()");
        }
        if (!initialized) {
            getPartitions();
            return;
        }
        try {
            agent.refresh(List.of()).join();
            agent.execute(agent::apply);
        } catch (CompletionException e) {
            throw new RedisException("Cannot reload Redis Cluster topology", e.getCause());
        }
    }

    @Override
    public CompletionStage<Void> refreshPartitionsAsync() {
        return initialized ? agent.refreshForTrigger() : super.refreshPartitionsAsync();
    }

    private void apply(List<RedisClusterNode> nodes) {
        if (!initialized) {
            return;
        }
        Partitions partitions = getPartitions();
        List<RedisClusterNode> before = new ArrayList<>(partitions.getPartitions());
        List<RedisClusterNode> after = nodes.stream().filter(getClusterClientOptions().getNodeFilter()).toList();
        partitions.reload(after);
        updatePartitionsInConnections();
        getResources().eventBus().publish(new ClusterTopologyChangedEvent(before, after));
    }

    private ClusterClientOptions getClusterClientOptions() {
        return (ClusterClientOptions) getOptions();
    }

    @Override
    public CompletableFuture<Void> shutdownAsync(long quietPeriod, long timeout, TimeUnit timeUnit) {
        agent.close();
        return links.close().handle((ok, error) -> null).thenCompose(ok -> super.shutdownAsync(quietPeriod, timeout, timeUnit))
                .whenComplete((ok, error) -> {
                    if (ownResources != null) { // not waited for: this may be one of its threads
                        ownResources.shutdown(quietPeriod, timeout, timeUnit);
                    }
                });
    }

}
