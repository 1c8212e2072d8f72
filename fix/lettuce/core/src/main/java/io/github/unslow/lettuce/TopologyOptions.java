package io.github.unslow.lettuce;

import io.lettuce.core.internal.LettuceAssert;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * How an {@link UnslowRedisClusterClient} learns of the cluster. Immutable; made with {@link #builder()}.
 *
 * <p>The defaults are made for fleets: one or two nodes are asked instead of all of them, replicas before masters, and not
 * at all while somebody tells of changes.
 */
public final class TopologyOptions {

    /** Which nodes are asked for the topology. */
    public enum Sources {

        /** Replicas; masters where there is no replica that answers. */
        REPLICAS,

        /** Any node. */
        ANY

    }

    /** Who tells of changes. */
    public enum Push {

        /**
         * A watcher ({@code unslow watch --publish}) where there is one, else the servers themselves as with
         * {@link #SERVERS}.
         */
        AUTO,

        /** A watcher only. Without one, topology is polled. */
        WATCHER,

        /**
         * The servers: a sharded subscription in each slot is taken back the moment the slot leaves its shard (Redis 7.0,
         * every Valkey). One connection a shard, and some 80 bytes of the server's memory a slot and client.
         */
        SERVERS,

        /** Nobody: topology is polled. */
        NONE

    }

    private final Sources sources;

    private final int sampleSize;

    private final Push push;

    private final Duration refreshPeriod;

    private final Duration refreshPeriodWithPush;

    private final Duration hungAfter;

    private final int subscribersMax;

    private final int heartbeatListenersMax;

    private final long seed;

    private TopologyOptions(Builder builder) {
        this.sources = builder.sources;
        this.sampleSize = builder.sampleSize;
        this.push = builder.push;
        this.refreshPeriod = builder.refreshPeriod;
        this.refreshPeriodWithPush = builder.refreshPeriodWithPush;
        this.hungAfter = builder.hungAfter;
        this.subscribersMax = builder.subscribersMax;
        this.heartbeatListenersMax = builder.heartbeatListenersMax;
        this.seed = builder.seed;
    }

    /**
     * @return the defaults.
     */
    public static TopologyOptions create() {
        return builder().build();
    }

    /**
     * @return a builder that begins with the defaults.
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * @return which nodes are asked. Default: {@link Sources#REPLICAS}.
     */
    public Sources getSources() {
        return sources;
    }

    /**
     * @return how many nodes are asked in a refresh. Default: 2.
     */
    public int getSampleSize() {
        return sampleSize;
    }

    /**
     * @return who tells of changes. Default: {@link Push#AUTO}.
     */
    public Push getPush() {
        return push;
    }

    /**
     * @return time between two refreshes while nobody tells of changes. Default: 60 s.
     */
    public Duration getRefreshPeriod() {
        return refreshPeriod;
    }

    /**
     * @return the same while somebody does: a last protection. Default: 10 min.
     */
    public Duration getRefreshPeriodWithPush() {
        return refreshPeriodWithPush;
    }

    /**
     * @return a node that owes an answer this long is asked whether it lives, and counts as hung when it is silent as long
     *         again; zero turns it off. Default: 200 ms.
     */
    public Duration getHungAfter() {
        return hungAfter;
    }

    /**
     * @return from so many subscribers of a slot on, a client subscribes to one slot of each shard only: it hears of
     *         failovers, and of single slots by their redirections. Default: 200.
     */
    public int getSubscribersMax() {
        return subscribersMax;
    }

    /**
     * @return from so many listeners at a node on, a client hears the watcher's heartbeat every five minutes instead of
     *         every second. Default: 25.
     */
    public int getHeartbeatListenersMax() {
        return heartbeatListenersMax;
    }

    /**
     * @return what makes this client choose other nodes and moments than others. Default: random.
     */
    public long getSeed() {
        return seed;
    }

    /**
     * Builder of {@link TopologyOptions}.
     */
    public static final class Builder {

        private Sources sources = Sources.REPLICAS;

        private int sampleSize = 2;

        private Push push = Push.AUTO;

        private Duration refreshPeriod = Duration.ofSeconds(60);

        private Duration refreshPeriodWithPush = Duration.ofMinutes(10);

        private Duration hungAfter = Duration.ofMillis(200);

        private int subscribersMax = 200;

        private int heartbeatListenersMax = 25;

        private long seed = ThreadLocalRandom.current().nextLong();

        private Builder() {
        }

        /**
         * @param sources which nodes are asked
         * @return {@code this}
         * @see TopologyOptions#getSources()
         */
        public Builder sources(Sources sources) {
            LettuceAssert.notNull(sources, "Sources must not be null");
            this.sources = sources;
            return this;
        }

        /**
         * @param sampleSize 1 or more
         * @return {@code this}
         * @see TopologyOptions#getSampleSize()
         */
        public Builder sampleSize(int sampleSize) {
            LettuceAssert.isTrue(sampleSize > 0, "Sample size must be 1 or more");
            this.sampleSize = sampleSize;
            return this;
        }

        /**
         * @param push who tells of changes
         * @return {@code this}
         * @see TopologyOptions#getPush()
         */
        public Builder push(Push push) {
            LettuceAssert.notNull(push, "Push must not be null");
            this.push = push;
            return this;
        }

        /**
         * @param period one second or more
         * @return {@code this}
         * @see TopologyOptions#getRefreshPeriod()
         */
        public Builder refreshPeriod(Duration period) {
            this.refreshPeriod = aSecondOrMore(period);
            return this;
        }

        /**
         * @param period one second or more
         * @return {@code this}
         * @see TopologyOptions#getRefreshPeriodWithPush()
         */
        public Builder refreshPeriodWithPush(Duration period) {
            this.refreshPeriodWithPush = aSecondOrMore(period);
            return this;
        }

        /**
         * @param time 50 ms or more; zero never asks
         * @return {@code this}
         * @see TopologyOptions#getHungAfter()
         */
        public Builder hungAfter(Duration time) {
            LettuceAssert.notNull(time, "Time must not be null");
            LettuceAssert.isTrue(time.isZero() || time.toMillis() >= 50, "Time must be zero, or 50 ms or more");
            this.hungAfter = time;
            return this;
        }

        /**
         * @param subscribers zero or more
         * @return {@code this}
         * @see TopologyOptions#getSubscribersMax()
         */
        public Builder subscribersMax(int subscribers) {
            LettuceAssert.isTrue(subscribers >= 0, "Subscribers must be zero or more");
            this.subscribersMax = subscribers;
            return this;
        }

        /**
         * @param listeners zero or more
         * @return {@code this}
         * @see TopologyOptions#getHeartbeatListenersMax()
         */
        public Builder heartbeatListenersMax(int listeners) {
            LettuceAssert.isTrue(listeners >= 0, "Listeners must be zero or more");
            this.heartbeatListenersMax = listeners;
            return this;
        }

        /**
         * @param seed the same seed chooses the same nodes and moments
         * @return {@code this}
         * @see TopologyOptions#getSeed()
         */
        public Builder seed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * @return the options.
         */
        public TopologyOptions build() {
            return new TopologyOptions(this);
        }

        private static Duration aSecondOrMore(Duration period) {
            LettuceAssert.notNull(period, "Period must not be null");
            LettuceAssert.isTrue(period.toMillis() >= 1000, "Period must be one second or more");
            return period;
        }

    }

}
