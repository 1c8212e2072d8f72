package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Topology.Node;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.protocol.CommandHandler;
import io.lettuce.core.resource.NettyCustomizer;
import io.lettuce.core.resource.SocketAddressResolver;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

/**
 * Which nodes owe the application an answer, and for how long; ends the waiting where none will come. Costs a reading of the
 * clock for each read of a socket; nothing is done for a command.
 *
 * <p>A node that is silent is not yet hung: a blocking command waits too. It is asked then.
 */
final class SilenceWatch implements NettyCustomizer {

    private final NettyCustomizer next;

    private final Set<Watched> channels = ConcurrentHashMap.newKeySet();

    /** Names of nodes by the address, or name, that the application's resolver led to. */
    private final Map<String, String> mapped = new ConcurrentHashMap<>();

    private volatile Consumer<String> closed = address -> {
    };

    /**
     * @param next the user's own customizer
     */
    SilenceWatch(NettyCustomizer next) {
        this.next = next;
    }

    /**
     * Connections may lead elsewhere than to the address that CLUSTER NODES has: through a tunnel, to a published port.
     *
     * @param resolver the application's own
     */
    SocketAddressResolver mapping(SocketAddressResolver resolver) {
        return new SocketAddressResolver() {

            @Override
            public SocketAddress resolve(RedisURI uri) {
                SocketAddress resolved = resolver.resolve(uri);
                if (uri.getHost() != null && resolved instanceof InetSocketAddress inet) {
                    String name = NetAddresses.normal(uri.getHost()) + ":" + uri.getPort();
                    mapped.put(inet.isUnresolved() ? named(inet) : NetAddresses.of(inet), name);
                }
                return resolved;
            }

        };
    }

    private static String named(InetSocketAddress inet) {
        return NetAddresses.normal(inet.getHostString()) + ":" + inet.getPort();
    }

    /** Where a connection leads. What was resolved just now belongs to who asked for its name. */
    private String address(InetSocketAddress inet) {
        String address = NetAddresses.of(inet);
        String name = mapped.get(named(inet));
        if (name != null) {
            mapped.put(address, name);
        }
        return address;
    }

    /** The node of this topology to which connections to this address lead, or {@code null}. */
    Node node(Topology topology, String address) {
        String name = mapped.get(address);
        Node node = name == null ? null : topology.at(name);
        return node == null ? topology.at(address) : node;
    }

    /** @param closed is told the address of each connection that its node, or the network, closed or did not accept */
    void onClosed(Consumer<String> closed) {
        this.closed = closed;
    }

    @Override
    public void afterBootstrapInitialized(Bootstrap bootstrap) {
        next.afterBootstrapInitialized(bootstrap);
    }

    @Override
    public void afterChannelInitialized(Channel channel) {
        next.afterChannelInitialized(channel);
        channel.pipeline().addFirst(new Watched());
    }

    /**
     * Addresses of nodes that have owed an answer for so long, on any connection.
     *
     * @param now {@link System#nanoTime()}
     */
    Set<String> silent(long now, Duration after) {
        Set<String> addresses = new HashSet<>();
        for (Watched channel : channels) {
            if (channel.isSilent(now, after.toNanos())) {
                addresses.add(channel.address);
            }
        }
        return addresses;
    }

    /**
     * Commands that a node was sent and has not answered fail, as if their time were over.
     *
     * @param why the exception's message
     */
    void giveUp(Topology topology, Node node, String why) {
        for (Watched watched : channels) {
            if (node.equals(node(topology, watched.address))) {
                watched.giveUp(why);
            }
        }
    }

    private final class Watched extends ChannelDuplexHandler {

        private volatile long readAt;

        /** Since when there was something to answer, as the ticks saw it; 0 for nothing. */
        private long busySince;

        /** {@code null} until it is known, and of what has no port: a socket of this machine. */
        private volatile String address;

        private volatile CommandHandler commands;

        private volatile Channel channel;

        /** By ourselves: it says nothing of the node. */
        private volatile boolean ended;

        private boolean isSilent(long now, long after) {
            CommandHandler handler = commands;
            if (handler == null || handler.getStack().isEmpty()) {
                busySince = 0;
                return false;
            }
            if (busySince == 0) {
                busySince = now;
            }
            return now - Math.max(readAt, busySince) > after;
        }

        /** They stay where they are, as those whose time is over do: an answer may yet come, and must find its place. */
        private void giveUp(String why) {
            CommandHandler handler = commands;
            if (handler != null) {
                channel.eventLoop().execute(() -> List.copyOf(handler.getStack()).stream().filter(command -> !command.isDone())
                        .forEach(command -> command.completeExceptionally(new RedisCommandTimeoutException(why))));
            }
        }

        @Override
        public void connect(ChannelHandlerContext context, SocketAddress remote, SocketAddress local, ChannelPromise promise)
                throws Exception {
            if (remote instanceof InetSocketAddress inet && !inet.isUnresolved()) {
                address = address(inet);
                promise.addListener(done -> {
                    if (!done.isSuccess() && !done.isCancelled()) {
                        closed.accept(address);
                    }
                });
            }
            super.connect(context, remote, local, promise);
        }

        @Override
        public void channelActive(ChannelHandlerContext context) throws Exception {
            if (address != null) {
                readAt = System.nanoTime();
                channel = context.channel();
                commands = context.pipeline().get(CommandHandler.class);
                channels.add(this);
            }
            super.channelActive(context);
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) throws Exception {
            readAt = System.nanoTime();
            super.channelRead(context, message);
        }

        @Override
        public void close(ChannelHandlerContext context, ChannelPromise promise) throws Exception {
            ended = true;
            super.close(context, promise);
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) throws Exception {
            if (channels.remove(this) && !ended) {
                closed.accept(address);
            }
            super.channelInactive(context);
        }

    }

}
