package io.github.unslow.lettuce;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.StatefulRedisConnectionImpl;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * Connections of our own to nodes, kept from one question to the next; where one listens, it is asked. None of them reconnects by itself: a link that
 * breaks is news, and is made again when it is needed.
 */
final class NodeLinks {

    /** A handshake of ours takes no longer, however patient the application is. */
    private static final Duration HANDSHAKE = Duration.ofSeconds(2);

    /** A link that has not answered for so long is made anew: its path may be gone. */
    private static final Duration SILENT = Duration.ofSeconds(5);

    private final RedisClient client;

    private final Supplier<ClientOptions> options;

    private final Map<String, CompletableFuture<StatefulRedisConnection<String, String>>> links = new ConcurrentHashMap<>();

    /** Since when a link has not answered; one that is slow is not made slower by new connections. */
    private final Map<String, Long> silentSince = new ConcurrentHashMap<>();

    /** Those that listen and answer questions as well: RESP3 tells messages and replies apart. */
    private final Map<String, StatefulRedisConnection<String, String>> listening = new ConcurrentHashMap<>();

    private final Map<String, Long> askedAt = new ConcurrentHashMap<>();

    private volatile boolean closed;

    /**
     * @param options of the application's connections: TLS, protocol and sockets are taken from them
     */
    NodeLinks(ClientResources resources, Supplier<ClientOptions> options) {
        this.client = RedisClient.create(resources);
        this.options = options;
    }

    /** Whether there is a connection to this node already: a question is answered sooner then. */
    boolean isWarm(RedisURI uri) {
        CompletableFuture<StatefulRedisConnection<String, String>> link = links.get(address(uri));
        return listening(address(uri)) != null || link != null && link.isDone() && !link.isCompletedExceptionally() && link.join().isOpen();
    }

    /**
     * Asks a node something.
     *
     * @param uri the node
     * @param patience for the answer, and for the connection where there is none yet
     */
    <T> CompletableFuture<T> ask(RedisURI uri, Duration patience,
            Function<RedisAsyncCommands<String, String>, RedisFuture<T>> question) {
        if (closed) {
            return CompletableFuture.failedFuture(new RedisException("The client is shut down"));
        }
        String address = address(uri);
        StatefulRedisConnection<String, String> ear = listening(address);
        CompletableFuture<StatefulRedisConnection<String, String>> link = ear == null ? link(address, uri)
                : CompletableFuture.completedFuture(ear);
        CompletableFuture<T> answer = link.thenCompose(connection -> question.apply(connection.async()))
                .orTimeout(patience.toMillis(), TimeUnit.MILLISECONDS);
        return answer.whenComplete((ok, error) -> {
            if (error == null || Failures.isReply(error)) {
                silentSince.remove(address);
                return;
            }
            boolean slow = Failures.cause(error) instanceof TimeoutException;
            long since = silentSince.computeIfAbsent(address, a -> System.nanoTime());
            // A connection that is still being made may yet be one.
            if (link.isDone() && (!slow || System.nanoTime() - since > SILENT.toNanos())) {
                silentSince.remove(address);
                if (ear == null) {
                    forget(address, link);
                } else {
                    listening.remove(address, ear); // whoever listens finds out for itself
                }
            }
        });
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> link(String address, RedisURI uri) {
        CompletableFuture<StatefulRedisConnection<String, String>> before = links.get(address);
        if (before != null && before.isDone() && (before.isCompletedExceptionally() || !before.join().isOpen())) {
            forget(address, before); // closed by the server, idle perhaps
        }
        askedAt.put(address, System.nanoTime());
        return links.computeIfAbsent(address, a -> open(() -> client.connectAsync(StringCodec.UTF8, own(uri))));
    }

    /** Who listens at a node and may be asked, or null. */
    private StatefulRedisConnection<String, String> listening(String address) {
        StatefulRedisConnection<String, String> ear = listening.get(address);
        if (ear != null && !ear.isOpen()) {
            listening.remove(address, ear);
            return null;
        }
        return ear;
    }

    /** Closes links that nobody has asked anything for so long. */
    void closeIdle(Duration idle) {
        links.forEach((address, link) -> {
            Long asked = askedAt.get(address);
            if (asked != null && link.isDone() && System.nanoTime() - asked > idle.toNanos()) {
                forget(address, link);
            }
        });
    }

    /** A connection that listens; its owner closes it. */
    CompletableFuture<StatefulRedisPubSubConnection<String, String>> listen(RedisURI uri, Duration patience) {
        if (closed) {
            return CompletableFuture.failedFuture(new RedisException("The client is shut down"));
        }
        CompletableFuture<StatefulRedisPubSubConnection<String, String>> opened = open(
                () -> client.connectPubSubAsync(StringCodec.UTF8, own(uri)));
        CompletableFuture<StatefulRedisPubSubConnection<String, String>> timely = opened.copy()
                .orTimeout(patience.toMillis(), TimeUnit.MILLISECONDS);
        timely.whenComplete((ok, error) -> {
            if (error != null) {
                opened.thenAccept(StatefulConnection::closeAsync);
            } else if (ok instanceof StatefulRedisConnectionImpl<?, ?> made
                    && made.getConnectionState().getNegotiatedProtocolVersion() == ProtocolVersion.RESP3) {
                listening.put(address(uri), ok);
            }
        });
        return timely;
    }

    /** Drops the link to a node that is not asked any more. */
    void forget(String address) {
        listening.remove(address);
        forget(address, links.get(address));
    }

    private void forget(String address, CompletableFuture<StatefulRedisConnection<String, String>> link) {
        if (link != null && links.remove(address, link)) {
            askedAt.remove(address);
            link.thenAccept(StatefulConnection::closeAsync);
        }
    }

    private static String address(RedisURI uri) {
        return uri.getHost() + ":" + uri.getPort();
    }

    private static RedisURI own(RedisURI uri) {
        Duration patience = uri.getTimeout().isZero() || uri.getTimeout().compareTo(HANDSHAKE) > 0 ? HANDSHAKE : uri.getTimeout();
        return RedisURI.builder(uri).withTimeout(patience).build();
    }

    private <T> CompletableFuture<T> open(Supplier<CompletionStage<T>> connect) {
        ClientOptions own = options.get();
        client.setOptions(ClientOptions.builder().autoReconnect(false).protocolVersion(own.getConfiguredProtocolVersion())
                .sslOptions(own.getSslOptions()).socketOptions(own.getSocketOptions())
                .timeoutOptions(TimeoutOptions.create()).build());
        try {
            return connect.get().toCompletableFuture();
        } catch (RuntimeException e) {
            return CompletableFuture.failedFuture(e);
        }
    }

    CompletableFuture<Void> close() {
        closed = true;
        links.clear();
        listening.clear();
        return client.shutdownAsync(0, 2, TimeUnit.SECONDS);
    }

}
