package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Topology.Node;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * One topology from several nodes' views, as the nodes agree among themselves: the claim with the highest config epoch
 * owns a slot. Lettuce takes the view that lists the most nodes, and any of them when all list the same.
 *
 * <ul>
 * <li>What a node says of itself counts more than what others say in its name at an epoch that is not higher: after a
 * slot moved, other nodes go on naming the old owner at an unchanged epoch.</li>
 * <li>What is known already stays while every view is older: one node from the wrong side of a partition turns nothing
 * back. (Not for ever: {@link TopologyAgent} drops it when nobody confirms it for a minute.)</li>
 * <li>A node is gone when the views no longer list it: all of them, each of which knows an owner of as many slots. One that
 * was reset, or has just joined, is no witness.</li>
 * </ul>
 */
final class ViewMerge {

    private ViewMerge() {
    }

    /** Whether a view is of another cluster altogether: it lists none of the known nodes. */
    static boolean isOther(Topology known, Topology view) {
        return !known.isEmpty() && view.nodes().stream().noneMatch(n -> known.byId(n.id()) != null);
    }

    /**
     * @param known what is known already, or {@link Topology#EMPTY}
     * @param views at least one; the first is preferred where epochs do not decide
     */
    static Topology merge(Topology known, List<Topology> views) {
        Map<String, Long> epochs = new HashMap<>();
        Map<String, Node> self = new HashMap<>();
        for (Topology view : views) {
            for (Node node : view.nodes()) {
                epochs.merge(node.id(), node.epoch(), Math::max);
                if (node.myself()) {
                    self.put(node.id(), node);
                }
            }
        }
        List<Node> claims = new ArrayList<>();
        for (Topology view : views) {
            for (Node node : view.nodes()) {
                Node own = self.get(node.id());
                if (own == null || node == own || node.epoch() > own.epoch()) {
                    claims.add(node);
                }
            }
        }
        boolean canForget = views.stream().allMatch(view -> view.covered() >= known.covered());
        for (Node node : known.nodes()) {
            Long seen = epochs.get(node.id());
            if (seen == null ? !canForget : node.epoch() > seen) {
                claims.add(node);
            }
        }
        Node[] owners = owners(claims);

        Map<String, Node> merged = new LinkedHashMap<>();
        for (Topology view : views) {
            for (Node node : view.nodes()) {
                Node chosen = merged.get(node.id());
                if (chosen == null || (!chosen.myself() && (node.myself() || node.epoch() > chosen.epoch()))) {
                    merged.put(node.id(), node);
                }
            }
        }
        for (Node node : known.nodes()) {
            Node chosen = merged.get(node.id());
            // A replica's epoch is its master's, which may be lower than its last one's.
            boolean newer = chosen != null && (node.master() || chosen.master()) && node.epoch() > chosen.epoch();
            if (chosen == null ? !canForget : !chosen.myself() && newer) {
                merged.put(node.id(), node);
            }
        }

        Map<String, BitSet> slots = new HashMap<>();
        for (int slot = 0; slot < owners.length; slot++) {
            if (owners[slot] != null) {
                slots.computeIfAbsent(owners[slot].id(), id -> new BitSet(Topology.SLOTS)).set(slot);
            }
        }
        List<Node> nodes = new ArrayList<>(merged.size());
        for (Node node : merged.values()) {
            BitSet owned = slots.getOrDefault(node.id(), new BitSet());
            long epoch = Math.max(node.epoch(), epochs.getOrDefault(node.id(), 0L));
            // Who owns slots is a master, whatever an older view calls it.
            boolean master = node.master() || !owned.isEmpty();
            nodes.add(new Node(node.id(), node.host(), node.ip(), node.port(), master, master ? null : node.masterId(), epoch,
                    node.failed(), node.suspected(), node.connected(), false, owned));
        }
        return new Topology(nodes);
    }

    private static Node[] owners(Collection<Node> claims) {
        Node[] owners = new Node[Topology.SLOTS];
        for (Node node : claims) {
            BitSet slots = node.slots();
            for (int slot = slots.nextSetBit(0); slot >= 0; slot = slots.nextSetBit(slot + 1)) {
                if (owners[slot] == null || node.epoch() > owners[slot].epoch()) {
                    owners[slot] = node;
                }
            }
        }
        return owners;
    }

}
