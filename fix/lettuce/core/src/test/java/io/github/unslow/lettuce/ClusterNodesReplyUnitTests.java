package io.github.unslow.lettuce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import org.junit.jupiter.api.Test;

class ClusterNodesReplyUnitTests {

    private static final String REPLY = """
            07c37df 127.0.0.1:30004@31004,host4,shard-id=69bc slave e7d1eec 0 1426238317239 4 connected
            67ed2db 127.0.0.1:30002@31002 master,fail? - 0 1426238316232 2 disconnected 5461-10922 [93->-292f8b3]
            292f8b3 ::1:30003@31003 master,fail - 0 1426238318243 3 connected 10923-16382 16383
            aaaaaaa :0@0 master,noaddr - 0 0 9 disconnected 7
            bbbbbbb 127.0.0.1:30009@31009 handshake - 0 0 0 connected
            e7d1eec :30001@31001 myself,master - 0 0 1 connected 0-5460
            """;

    @Test
    void readsWhatServersWrite() {
        Topology topology = ClusterNodesReply.parse(REPLY, "10.0.0.1", 6379);
        assertEquals(4, topology.nodes().size());
        assertEquals("e7d1eec", topology.byId("07c37df").masterId());
        assertEquals("host4:30004", topology.byId("07c37df").address(), "as Lettuce connects to it");
        assertEquals("07c37df", topology.at("127.0.0.1:30004").id());
        assertEquals("292f8b3", topology.at(NetAddresses.normal("0:0:0:0:0:0:0:1") + ":30003").id());
        assertEquals("10.0.0.1:30001", topology.byId("e7d1eec").address());
        assertTrue(topology.byId("e7d1eec").myself());
        assertTrue(topology.byId("67ed2db").suspected());
        assertFalse(topology.byId("67ed2db").connected());
        assertTrue(topology.byId("292f8b3").failed());
        assertEquals("::1", topology.byId("292f8b3").host());
        assertEquals("292f8b3", Views.owner(topology, 16383));
        assertEquals("67ed2db", Views.owner(topology, 5461));
        assertNull(topology.byId("aaaaaaa"));
    }

    @Test
    void saysWhichLineIsWrongWithoutRepeatingIt() {
        for (String line : new String[] { "a b", "a 1.1.1.1:x@1 master - 0 0 1 connected", "a 1.1.1.1:70000 master - 0 0 1 connected",
                "a 1.1.1.1:1 master - 0 0 1 connected 9-3", "a 1.1.1.1:1 master - 0 0 1 connected 0-16384",
                "a 1.1.1.1:1 master - 0 0 secret connected" }) {
            String message = assertThrows(IllegalArgumentException.class, () -> ClusterNodesReply.parse(line, "h", 1), line)
                    .getMessage();
            assertTrue(message.startsWith("line 1 "), message);
        }
        assertThrows(IllegalArgumentException.class, () -> ClusterNodesReply.parse("", "h", 1));
    }

    @Test
    void anythingElseIsAnErrorAndNothingWorse() {
        Random random = new Random(7);
        byte[] bytes = REPLY.getBytes();
        for (int i = 0; i < 20_000; i++) {
            byte[] broken = bytes.clone();
            for (int n = random.nextInt(6); n >= 0; n--) {
                broken[random.nextInt(broken.length)] = (byte) random.nextInt(128);
            }
            String text = new String(broken, 0, random.nextInt(broken.length));
            try {
                ClusterNodesReply.parse(text, "h", 1);
            } catch (IllegalArgumentException expected) {
                // what it is for
            }
        }
    }

}
