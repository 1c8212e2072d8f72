package io.github.unslow.lettuce.boot;

import io.github.unslow.lettuce.TopologyOptions;
import io.github.unslow.lettuce.UnslowRedisClusterClient;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import java.util.List;
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
        ClusterTopologyRefreshOptions refresh = options.build().getTopologyRefreshOptions();
        boolean chosen = settings.getClientOptions().isPresent() && !refresh.getAdaptiveRefreshTriggers().isEmpty();
        if (chosen) {
            return options.build();
        }
        // Spring Boot leaves every trigger off; a refresh of ours is cheap.
        return options.topologyRefreshOptions(UnslowRedisClusterClient.refreshOptions()).build();
    }

}
