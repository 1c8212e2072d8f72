package io.github.unslow.lettuce;

import io.lettuce.core.cluster.SlotHash;

/**
 * One channel name in each slot, for subscriptions that tell when the slot leaves. The names are those of
 * {@code unslow watch}, so that one ACL rule allows both: {@code &unslow:*}.
 */
final class ShardChannels {

    private static final String PREFIX = "unslow:";

    private static final String[] NAMES = new String[SlotHash.SLOT_COUNT];

    static {
        // About 170,000 tries, some tens of milliseconds.
        int missing = NAMES.length;
        for (int n = 0; missing > 0; n++) {
            String name = PREFIX + n;
            int slot = SlotHash.getSlot(name);
            if (NAMES[slot] == null) {
                NAMES[slot] = name;
                missing--;
            }
        }
    }

    private ShardChannels() {
    }

    static String of(int slot) {
        return NAMES[slot];
    }

    /** The slot of one of these names, or -1. */
    static int slotOf(String channel) {
        return channel.startsWith(PREFIX) ? SlotHash.getSlot(channel) : -1;
    }

}
