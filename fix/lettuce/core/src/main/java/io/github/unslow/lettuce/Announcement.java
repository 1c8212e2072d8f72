package io.github.unslow.lettuce;

import java.util.BitSet;

/**
 * What {@code unslow watch --publish} says on the channels of the cluster (docs/watch.md). Anybody may publish there, so
 * everything is doubted: what cannot be read is an {@link IllegalArgumentException}, and what can is checked against the
 * topology before it is believed.
 */
sealed interface Announcement {

    String MOVED = "__cluster__:moved";

    String FAILOVER = "__cluster__:failover";

    String DIGEST = "__cluster__:digest";

    /** Longer ones are nobody's. All slots one by one are 94 KB. */
    int LONGEST = 128 * 1024;

    /** Slots that another node owns now. */
    record Moved(BitSet slots, String address) implements Announcement {
    }

    /** A replica in its master's place. */
    record Promoted(BitSet slots, String address) implements Announcement {
    }

    /**
     * A heartbeat.
     *
     * @param digest {@link Topology#digest()} of the watcher's view
     * @param sequence changes told so far
     * @param watcher who
     */
    record Heartbeat(String digest, long sequence, String watcher) implements Announcement {
    }

    /**
     * @param channel where it came
     * @param text what came
     * @throws IllegalArgumentException when it is no such thing; its message does not repeat the text
     */
    static Announcement parse(String channel, String text) {
        if (text.length() > LONGEST) {
            throw new IllegalArgumentException(text.length() + " characters");
        }
        String[] words = text.split(" ", -1);
        switch (channel) {
            case MOVED:
            case FAILOVER:
                expect(words, 2);
                BitSet slots = new BitSet(Topology.SLOTS);
                for (String range : words[0].split(",", -1)) {
                    ClusterNodesReply.addRange(slots, range);
                }
                String address = address(words[1]);
                return channel.equals(MOVED) ? new Moved(slots, address) : new Promoted(slots, address);
            case DIGEST:
                expect(words, 3);
                long sequence = Long.parseLong(words[1]);
                if (!words[0].matches("[0-9a-f]{16}") || sequence < 0 || words[2].isEmpty() || words[2].length() > 64) {
                    throw new IllegalArgumentException("no heartbeat");
                }
                return new Heartbeat(words[0], sequence, words[2]);
            default:
                throw new IllegalArgumentException("unknown channel");
        }
    }

    private static void expect(String[] words, int count) {
        if (words.length != count) {
            throw new IllegalArgumentException(words.length + " words instead of " + count);
        }
    }

    private static String address(String text) {
        int colon = text.lastIndexOf(':');
        int port = Integer.parseInt(text.substring(colon + 1));
        if (colon < 1 || port < 1 || port > 65535) {
            throw new IllegalArgumentException("no address");
        }
        return text;
    }

}
