package io.github.unslow.lettuce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import java.util.BitSet;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class TopologyUnitTests {

    private static final Topology TOPOLOGY = Views.of("a:1 master e1 0-99", "b:2 master e2 100-199", "c:3 replica a e1",
            "d:4 replica a e1");

    private static BitSet slots(String range) {
        BitSet slots = new BitSet();
        ClusterNodesReply.addRange(slots, range);
        return slots;
    }

    @Test
    void slotsMoveAndNothingElse() {
        Topology moved = TOPOLOGY.moved(slots("90-110"), TOPOLOGY.byId("b"));
        assertEquals("a", Views.owner(moved, 89));
        assertEquals("b", Views.owner(moved, 90));
        assertEquals("b", Views.owner(moved, 199));
        assertEquals("a", Views.owner(TOPOLOGY, 90), "the old one stays as it was");
    }

    @Test
    void aPromotedReplicaHasItsMastersSlotsAndFollowers() {
        Topology promoted = TOPOLOGY.promoted(slots("0-99"), TOPOLOGY.byId("c"));
        assertTrue(promoted.byId("c").master());
        assertEquals("c", promoted.byId("a").masterId());
        assertEquals("c", promoted.byId("d").masterId());
        assertEquals("c", Views.owner(promoted, 50));
    }

    @Test
    void epochsAloneAreNoDifference() {
        assertFalse(TOPOLOGY.differsFrom(Views.of("a:1 master e7 0-99", "b:2 master e2 100-199", "c:3 replica a e7",
                "d:4 replica a e7")));
        assertTrue(TOPOLOGY.differsFrom(TOPOLOGY.moved(slots("0-1"), TOPOLOGY.byId("b"))));
    }

    @Test
    void fromReplicasThatAreLeftAloneLettuceDoesNotRead() {
        List<RedisClusterNode> nodes = TOPOLOGY.toPartitions(RedisURI.create("redis://user:secret@seed:9"), Set.of("c", "a"),
                Comparator.comparing(Topology.Node::id));
        assertEquals(List.of("a", "b", "c", "d"), nodes.stream().map(RedisClusterNode::getNodeId).toList());
        assertEquals(List.of("c"), nodes.stream().filter(n -> n.getReplOffset() == 0).map(RedisClusterNode::getNodeId).toList(),
                "masters are never left alone");
        assertEquals("a", nodes.get(0).getUri().getHost());
        assertEquals(100, nodes.get(0).getSlots().size());
        assertTrue(nodes.get(0).is(RedisClusterNode.NodeFlag.UPSTREAM));
    }

    @Test
    void addressesOfSocketsAreWrittenAsTheClusterDoes() throws UnknownHostException {
        InetAddress six = InetAddress.getByName("2001:db8:0:0:0:0:0:1");
        assertEquals("2001:db8::1:6379", NetAddresses.of(new InetSocketAddress(six, 6379)));
        assertEquals("10.0.0.1:7000", NetAddresses.of(new InetSocketAddress(InetAddress.getByName("10.0.0.1"), 7000)));
    }

    @Test
    void thereIsAChannelInEverySlot() {
        for (int slot = 0; slot < SlotHash.SLOT_COUNT; slot++) {
            assertEquals(slot, SlotHash.getSlot(ShardChannels.of(slot)));
            assertEquals(slot, ShardChannels.slotOf(ShardChannels.of(slot)));
        }
        assertEquals(-1, ShardChannels.slotOf("news"));
    }

}
