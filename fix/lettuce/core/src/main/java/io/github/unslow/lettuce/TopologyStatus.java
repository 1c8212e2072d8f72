package io.github.unslow.lettuce;

/**
 * How a client learns of its cluster at the moment.
 *
 * @param source who tells of changes
 * @param complete whether every change would be heard of; {@code false} while subscriptions are being made
 * @param refreshes how often nodes were asked
 * @param announcements messages of a watcher that could be read
 * @param nodes nodes that are known
 */
public record TopologyStatus(Source source, boolean complete, long refreshes, long announcements, int nodes) {

    /** Who tells of changes. */
    public enum Source {

        /** A watcher: {@code unslow watch --publish}. */
        WATCHER,

        /** The servers, by sharded subscriptions that they take back. */
        SERVERS,

        /** Nobody. */
        POLLING

    }

}
