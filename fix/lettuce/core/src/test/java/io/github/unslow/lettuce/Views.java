package io.github.unslow.lettuce;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/** Topologies of a line a node: {@code "a:1 master e3 0-100"}, {@code "b:2 replica a e3"}; {@code *} is who says it. */
final class Views {

    private Views() {
    }

    static Topology of(String... lines) {
        List<Topology.Node> nodes = new ArrayList<>();
        for (String line : lines) {
            String[] words = line.split(" ");
            boolean myself = words[0].startsWith("*");
            String address = words[0].replace("*", "");
            String id = address.substring(0, address.indexOf(':'));
            boolean master = words[1].equals("master");
            int at = master ? 2 : 3;
            BitSet slots = new BitSet();
            for (int i = at + 1; i < words.length && !words[i].equals("fail"); i++) {
                ClusterNodesReply.addRange(slots, words[i]);
            }
            nodes.add(new Topology.Node(id, id, id, Integer.parseInt(address.substring(id.length() + 1)), master,
                    master ? null : words[2], Long.parseLong(words[at].substring(1)), line.endsWith(" fail"), false, true, myself,
                    slots));
        }
        return new Topology(nodes);
    }

    static String owner(Topology topology, int slot) {
        Topology.Node owner = topology.owners()[slot];
        return owner == null ? null : owner.id();
    }

}
