package io.github.unslow.lettuce;

import io.lettuce.core.protocol.CommandHandler;
import io.lettuce.core.resource.NettyCustomizer;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

/**
 * Which nodes owe the application an answer, and for how long. Costs a reading of the clock for each read of a socket;
 * nothing is done for a command.
 *
 * <p>A node that is silent is not yet hung: a blocking command waits too. It is asked then.
 */
final class SilenceWatch implements NettyCustomizer {

    private final NettyCustomizer next;

    private final Set<Watched> channels = ConcurrentHashMap.newKeySet();

    private volatile Consumer<String> closed = address -> {
    };

    /**
     * @param next the user's own customizer
     */
    SilenceWatch(NettyCustomizer next) {
        this.next = next;
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

    private final class Watched extends ChannelDuplexHandler {

        private volatile long readAt;

        /** Since when there was something to answer, as the ticks saw it; 0 for nothing. */
        private long busySince;

        private volatile String address;

        private volatile CommandHandler commands;

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

        @Override
        public void connect(ChannelHandlerContext context, SocketAddress remote, SocketAddress local, ChannelPromise promise)
                throws Exception {
            promise.addListener(done -> {
                boolean refused = !done.isSuccess() && !done.isCancelled();
                if (refused && remote instanceof InetSocketAddress inet && inet.getAddress() != null) {
                    closed.accept(NetAddresses.of(inet));
                }
            });
            super.connect(context, remote, local, promise);
        }

        @Override
        public void channelActive(ChannelHandlerContext context) throws Exception {
            SocketAddress remote = context.channel().remoteAddress();
            if (remote instanceof InetSocketAddress inet && inet.getAddress() != null) {
                readAt = System.nanoTime();
                address = NetAddresses.of(inet);
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
