package io.github.unslow.lettuce;

import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode.NodeFlag;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;

/**
 * The nodes of a cluster, who owns which slots, and since which epoch. Immutable: what changes is a new one.
 *
 * <p>Lettuce's own {@code Partitions} has no epochs to compare by once it is merged, and is changed in place; it is made
 * from this one.
 */
final class Topology {

    static final int SLOTS = SlotHash.SLOT_COUNT;

    /**
     * One node, as CLUSTER NODES writes it.
     *
     * @param host how it is connected to: the host name it announces, else its address
     * @param ip its address
     * @param masterId id of the node it follows, {@code null} for a master
     * @param slots owned slots; not to be changed
     */
    record Node(String id, String host, String ip, int port, boolean master, String masterId, long epoch, boolean failed,
            boolean suspected, boolean connected, boolean myself, BitSet slots) {

        String address() {
            return host + ":" + port;
        }

        /** By its address, whatever it calls itself. */
        String numeric() {
            return NetAddresses.normal(ip) + ":" + port;
        }

        Node withSlots(BitSet slots) {
            return new Node(id, host, ip, port, master, masterId, epoch, failed, suspected, connected, myself, slots);
        }

        Node asMaster(BitSet slots, long epoch) {
            return new Node(id, host, ip, port, true, null, epoch, failed, suspected, connected, myself, slots);
        }

        Node asReplicaOf(String masterId) {
            return new Node(id, host, ip, port, false, masterId, epoch, failed, suspected, connected, myself, new BitSet());
        }

    }

    static final Topology EMPTY = new Topology(List.of());

    private final Map<String, Node> byId = new LinkedHashMap<>();

    private final Map<String, Node> byAddress = new LinkedHashMap<>();

    Topology(Collection<Node> nodes) {
        for (Node node : nodes) {
            byId.put(node.id(), node);
            byAddress.put(node.numeric(), node);
            byAddress.put(node.ip() + ":" + node.port(), node);
            byAddress.put(node.address(), node);
        }
    }

    Collection<Node> nodes() {
        return Collections.unmodifiableCollection(byId.values());
    }

    boolean isEmpty() {
        return byId.isEmpty();
    }

    Node byId(String id) {
        return id == null ? null : byId.get(id);
    }

    /** The node at {@code host:port}, by name or address, or {@code null}. */
    Node at(String address) {
        return byAddress.get(address);
    }

    /** Id of the owner of each slot, {@code null} where nobody owns it. */
    Node[] owners() {
        Node[] owners = new Node[SLOTS];
        for (Node node : byId.values()) {
            node.slots().stream().forEach(slot -> owners[slot] = node);
        }
        return owners;
    }

    /** How many slots have an owner. */
    int covered() {
        return byId.values().stream().mapToInt(node -> node.slots().cardinality()).sum();
    }

    List<Node> masters() {
        return byId.values().stream().filter(n -> n.master() && !n.slots().isEmpty()).toList();
    }

    List<Node> replicasOf(String id) {
        return byId.values().stream().filter(n -> !n.master() && id.equals(n.masterId())).toList();
    }

    /**
     * The same with some slots at another node, as a watcher tells it.
     *
     * @param slots the slots that moved
     * @param to a node of this topology
     */
    Topology moved(BitSet slots, Node to) {
        List<Node> nodes = new ArrayList<>(byId.size());
        for (Node node : byId.values()) {
            BitSet owned = node.slots();
            if (node.id().equals(to.id())) {
                owned = (BitSet) owned.clone();
                owned.or(slots);
            } else if (owned.intersects(slots)) {
                owned = (BitSet) owned.clone();
                owned.andNot(slots);
            }
            nodes.add(owned == node.slots() ? node : node.withSlots(owned));
        }
        return new Topology(nodes);
    }

    /**
     * The same with a replica in its master's place.
     *
     * @param slots what the new master owns
     * @param promoted a node of this topology
     */
    Topology promoted(BitSet slots, Node promoted) {
        String before = promoted.masterId();
        List<Node> nodes = new ArrayList<>(byId.size());
        for (Node node : moved(slots, promoted).nodes()) {
            if (node.id().equals(promoted.id())) {
                nodes.add(node.asMaster(node.slots(), node.epoch()));
            } else if (before != null && (node.id().equals(before) || before.equals(node.masterId()))
                    && node.slots().isEmpty()) {
                nodes.add(node.asReplicaOf(promoted.id()));
            } else {
                nodes.add(node);
            }
        }
        return new Topology(nodes);
    }

    /**
     * Whether routes, roles or health differ. Epochs alone do not.
     */
    boolean differsFrom(Topology other) {
        if (byId.size() != other.byId.size()) {
            return true;
        }
        for (Node a : byId.values()) {
            Node b = other.byId.get(a.id());
            if (b == null || a.master() != b.master() || a.failed() != b.failed() || a.connected() != b.connected()
                    || !a.address().equals(b.address()) || !a.slots().equals(b.slots())
                    || !Objects.equals(a.masterId(), b.masterId())) {
                return true;
            }
        }
        return false;
    }

    /**
     * The digest that {@code unslow watch --publish} sends with its heartbeat (docs/watch.md): FNV-1a over address, role,
     * master's address and slots of each node, sorted by address.
     *
     * @param names under TLS the watcher calls nodes by the names they announce
     */
    String digest(boolean names) {
        long hash = 0xcbf29ce484222325L;
        List<Node> sorted = new ArrayList<>(byId.values());
        Function<Node, String> address = node -> names ? node.address() : node.ip() + ":" + node.port();
        sorted.sort(Comparator.comparing(address));
        for (Node node : sorted) {
            Node master = byId(node.masterId());
            for (String text : new String[] { address.apply(node), node.master() ? "master" : "replica",
                    master == null ? "" : address.apply(master), ranges(node.slots()) }) {
                for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
                    hash = (hash ^ (b & 0xff)) * 0x100000001b3L;
                }
                hash = (hash ^ '\n') * 0x100000001b3L;
            }
        }
        return String.format("%016x", hash);
    }

    private static String ranges(BitSet slots) {
        StringBuilder text = new StringBuilder();
        for (int first = slots.nextSetBit(0); first >= 0;) {
            int end = slots.nextClearBit(first);
            text.append(text.isEmpty() ? "" : " ").append(first);
            if (end - 1 > first) {
                text.append('-').append(end - 1);
            }
            first = slots.nextSetBit(end);
        }
        return text.toString();
    }

    /**
     * The nodes as Lettuce wants them.
     *
     * @param settings credentials, TLS and timeouts of the nodes
     * @param left ids of replicas that must not be read from now
     * @param order what this client prefers: Lettuce begins with the first ones
     */
    List<RedisClusterNode> toPartitions(RedisURI settings, Set<String> left, Comparator<Node> order) {
        List<RedisClusterNode> nodes = new ArrayList<>(byId.size());
        for (Node node : byId.values().stream().sorted(order).toList()) {
            Set<NodeFlag> flags = EnumSet.of(node.master() ? NodeFlag.UPSTREAM : NodeFlag.REPLICA);
            if (node.failed()) {
                flags.add(NodeFlag.FAIL);
            } else if (node.suspected()) {
                flags.add(NodeFlag.EVENTUAL_FAIL);
            }
            RedisClusterNode one = new RedisClusterNode(uri(settings, node.host(), node.port()), node.id(), node.connected(),
                    node.masterId(), 0, 0, node.epoch(), node.slots().stream().boxed().toList(), flags);
            if (!node.master() && left.contains(node.id())) {
                // Lettuce does not read from it then, and leaves its connections and what is under way on them alone.
                one.setReplOffset(0);
            }
            nodes.add(one);
        }
        return nodes;
    }

    /** A node's address with the credentials, TLS and timeouts of another. */
    static RedisURI uri(RedisURI settings, String host, int port) {
        return RedisURI.builder(settings).withHost(host).withPort(port).build();
    }

}
