package io.github.unslow.lettuce.boot;

import io.github.unslow.lettuce.TopologyOptions;
import io.github.unslow.lettuce.UnslowRedisClusterClient;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions.RefreshTrigger;
import java.util.List;
import java.util.Set;
import org.springframework.data.redis.connection.RedisClusterConfiguration;
import org.springframework.data.redis.connection.RedisNode;
import org.springframework.data.redis.connection.lettuce.LettuceClientConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/**
 * Spring Data Redis' factory, with a client of ours where it is about a cluster.
 */
public class UnslowLettuceConnectionFactory extends LettuceConnectionFactory {

    private final TopologyOptions topology;

    /**
     * @param cluster nodes, user and password
     * @param client TLS, timeouts and the like
     * @param topology how the client learns of the cluster
     */
    public UnslowLettuceConnectionFactory(RedisClusterConfiguration cluster, LettuceClientConfiguration client,
            TopologyOptions topology) {
        super(cluster, client);
        this.topology = topology;
    }

    @Override
    protected AbstractRedisClient createClient() {
        RedisClusterConfiguration cluster = getClusterConfiguration();
        LettuceClientConfiguration settings = getClientConfiguration();
        if (cluster == null) {
            return super.createClient();
        }
        List<RedisURI> uris = cluster.getClusterNodes().stream().map(node -> uri(node, cluster, settings)).toList();
        UnslowRedisClusterClient client = UnslowRedisClusterClient.create(settings.getClientResources().orElse(null), uris,
                topology);
        client.setOptions(options(cluster, settings));
        return client;
    }

    private static RedisURI uri(RedisNode node, RedisClusterConfiguration cluster, LettuceClientConfiguration settings) {
        RedisURI.Builder uri = RedisURI.Builder.redis(node.getHost(), node.getPort())
                .withSsl(settings.isUseSsl()).withVerifyPeer(settings.getVerifyMode()).withStartTls(settings.isStartTls())
                .withTimeout(settings.getCommandTimeout());
        settings.getClientName().ifPresent(uri::withClientName);
        settings.getRedisCredentialsProviderFactory().ifPresentOrElse(
                factory -> uri.withAuthentication(factory.createCredentialsProvider(cluster)),
                () -> cluster.getPassword().toOptional().ifPresent(password -> {
                    if (cluster.getUsername() == null) {
                        uri.withPassword(password);
                    } else {
                        uri.withAuthentication(cluster.getUsername(), password);
                    }
                }));
        return uri.build();
    }

    private static ClusterClientOptions options(RedisClusterConfiguration cluster, LettuceClientConfiguration settings) {
        ClientOptions own = settings.getClientOptions().orElseGet(ClusterClientOptions::create);
        ClusterClientOptions.Builder options = own instanceof ClusterClientOptions ? ((ClusterClientOptions) own).mutate()
                : ClusterClientOptions.builder(own);
        if (cluster.getMaxRedirects() != null) {
            options.maxRedirects(cluster.getMaxRedirects());
        }
        return options.topologyRefreshOptions(refreshOptions(options.build().getTopologyRefreshOptions())).build();
    }

    /**
     * What was chosen stays. Triggers that were left off (Spring Boot's default), and the long wait between two refreshes that
     * is for a refresh of Lettuce's own, become ours.
     */
    private static ClusterTopologyRefreshOptions refreshOptions(ClusterTopologyRefreshOptions chosen) {
        ClusterTopologyRefreshOptions ours = UnslowRedisClusterClient.refreshOptions();
        Set<RefreshTrigger> triggers = chosen.getAdaptiveRefreshTriggers().isEmpty() ? ours.getAdaptiveRefreshTriggers()
                : chosen.getAdaptiveRefreshTriggers();
        boolean wait = !chosen.getAdaptiveRefreshTimeout()
                .equals(ClusterTopologyRefreshOptions.DEFAULT_ADAPTIVE_REFRESH_TIMEOUT_DURATION);
        boolean attempts = chosen.getRefreshTriggersReconnectAttempts()
                != ClusterTopologyRefreshOptions.DEFAULT_REFRESH_TRIGGERS_RECONNECT_ATTEMPTS;
        return ClusterTopologyRefreshOptions.builder()
                .enablePeriodicRefresh(chosen.getRefreshPeriod()).enablePeriodicRefresh(chosen.isPeriodicRefreshEnabled())
                .enableAdaptiveRefreshTrigger(triggers.toArray(new RefreshTrigger[0]))
                .adaptiveRefreshTriggersTimeout((wait ? chosen : ours).getAdaptiveRefreshTimeout())
                .refreshTriggersReconnectAttempts((attempts ? chosen : ours).getRefreshTriggersReconnectAttempts())
                .closeStaleConnections(chosen.isCloseStaleConnections())
                .dynamicRefreshSources(chosen.useDynamicRefreshSources()).build();
    }

}
