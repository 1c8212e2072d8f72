package io.github.unslow.lettuce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.unslow.lettuce.Announcement.Heartbeat;
import io.github.unslow.lettuce.Announcement.Moved;
import io.github.unslow.lettuce.Announcement.Promoted;
import org.junit.jupiter.api.Test;

class AnnouncementUnitTests {

    @Test
    void readsWhatAWatcherWrites() {
        Moved moved = (Moved) Announcement.parse(Announcement.MOVED, "42 10.0.0.1:7000");
        assertEquals("{42}", moved.slots().toString());
        assertEquals("10.0.0.1:7000", moved.address());
        Promoted promoted = (Promoted) Announcement.parse(Announcement.FAILOVER, "0-5460,6000,7000-7001 ::1:7000");
        assertEquals(5464, promoted.slots().cardinality());
        assertEquals(new Heartbeat("00e1b2c3d4f5a697", 12, "0019-ab"),
                Announcement.parse(Announcement.DIGEST, "00e1b2c3d4f5a697 12 0019-ab"));
    }

    @Test
    void refusesWhatNobodyWouldWrite() {
        String[][] wrong = { { Announcement.MOVED, "" }, { Announcement.MOVED, "42" }, { Announcement.MOVED, "16384 a:1" },
                { Announcement.MOVED, "5-3 a:1" }, { Announcement.MOVED, "-1 a:1" }, { Announcement.MOVED, "1 a:0" },
                { Announcement.MOVED, "1 a:99999" }, { Announcement.MOVED, "1 :7000" }, { Announcement.MOVED, "1 a:1 b" },
                { Announcement.FAILOVER, "1,,2 a:1" }, { Announcement.DIGEST, "xyz 1 w" },
                { Announcement.DIGEST, "00e1b2c3d4f5a697 -1 w" }, { Announcement.DIGEST, "00e1b2c3d4f5a697 99999999999999999999 w" },
                { "elsewhere", "1 a:1" }, { Announcement.MOVED, "1".repeat(Announcement.LONGEST + 1) } };
        for (String[] message : wrong) {
            assertThrows(IllegalArgumentException.class, () -> Announcement.parse(message[0], message[1]), message[1]);
        }
    }

}
