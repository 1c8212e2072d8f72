package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Topology.Node;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Set;

/**
 * Reads a reply of CLUSTER NODES. Nodes without an address, or still shaking hands, are left out, as clients cannot use
 * them.
 */
final class ClusterNodesReply {

    private ClusterNodesReply() {
    }

    /**
     * @param reply the text
     * @param host where it was asked, for a node that does not know its own address yet
     * @param port its port
     * @throws IllegalArgumentException when a line is not what a server writes; the message tells the line's number and
     *         never its text
     */
    static Topology parse(String reply, String host, int port) {
        List<Node> nodes = new ArrayList<>();
        int number = 0;
        for (String line : reply.split("\n")) {
            number++;
            if (line.isBlank()) {
                continue;
            }
            Node node;
            try {
                node = node(line.trim().split(" +"), host, port);
            } catch (RuntimeException e) {
                throw new IllegalArgumentException("line " + number + " of CLUSTER NODES is not a node: " + e.getMessage());
            }
            if (node != null) {
                nodes.add(node);
            }
        }
        if (nodes.isEmpty()) {
            throw new IllegalArgumentException("CLUSTER NODES names no node");
        }
        return new Topology(nodes);
    }

    private static Node node(String[] words, String ownHost, int ownPort) {
        if (words.length < 8) {
            throw new IllegalArgumentException(words.length + " words instead of 8 or more");
        }
        Set<String> flags = Set.of(words[2].split(","));
        boolean myself = flags.contains("myself");
        if (flags.contains("handshake") || (flags.contains("noaddr") && !myself)) {
            return null;
        }
        // host:port[@bus-port][,hostname[,shard-id=..]]
        String[] parts = words[1].split(",");
        String address = parts[0];
        String name = parts.length > 1 && !parts[1].contains("=") ? parts[1] : "";
        int at = address.indexOf('@');
        address = at < 0 ? address : address.substring(0, at);
        int colon = address.lastIndexOf(':');
        String host = colon < 0 ? "" : address.substring(0, colon);
        int port = Integer.parseInt(address.substring(colon + 1));
        if (host.isEmpty()) {
            if (!myself) {
                return null;
            }
            host = ownHost;
            port = port == 0 ? ownPort : port;
        }
        if (port < 1 || port > 65535) {
            throw new IllegalArgumentException("port " + port);
        }
        boolean master = flags.contains("master");
        String ip = host;
        host = name.isEmpty() ? host : name; // as Lettuce connects to it
        BitSet slots = new BitSet(Topology.SLOTS);
        for (int i = 8; i < words.length && master; i++) {
            if (!words[i].startsWith("[")) { // [slot->-id]: on its way
                addRange(slots, words[i]);
            }
        }
        return new Node(words[0], host, ip, port, master, words[3].equals("-") ? null : words[3], Long.parseLong(words[6]),
                flags.contains("fail"), flags.contains("fail?"), myself || words[7].equals("connected"), myself, slots);
    }

    /**
     * Adds {@code slot} or {@code first-last}.
     *
     * @throws IllegalArgumentException when it is neither
     */
    static void addRange(BitSet slots, String text) {
        int dash = text.indexOf('-');
        int first = Integer.parseInt(dash < 0 ? text : text.substring(0, dash));
        int last = dash < 0 ? first : Integer.parseInt(text.substring(dash + 1));
        if (first < 0 || last < first || last >= Topology.SLOTS) {
            throw new IllegalArgumentException("slots " + first + " to " + last);
        }
        slots.set(first, last + 1);
    }

}
