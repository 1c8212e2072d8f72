package io.github.unslow.lettuce;

import io.github.unslow.lettuce.Topology.Node;
import io.netty.util.internal.logging.InternalLogger;
import io.netty.util.internal.logging.InternalLoggerFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Nodes that owe an answer, or whose connections closed: they are asked whether they live. While a master does not say so,
 * the replicas of its shard are asked whether one of them is master now, and the one that is, for its view. Then what the
 * old master was sent and has not answered fails, what waits for its connection to come back goes to the new one, and its
 * connections are closed. Replicas that do not answer, or came back and do not hold their master's data yet, are not read
 * from.
 */
final class HungNodes {

    private static final InternalLogger logger = InternalLoggerFactory.getInstance(HungNodes.class);

    /** How often connections are looked at. */
    private static final long TICK_MS = 50;

    /** All clients of a cluster together ask replicas so often a second while a master is silent, as far as is known. */
    private static final int ROLES_PER_S = 4000;

    private static final Duration ROLE_PATIENCE = Duration.ofMillis(250);

    /** So long after it lost its slots a node that does not answer counts as replaced. */
    private static final Duration DEPOSED = Duration.ofSeconds(60);

    private final TopologyAgent agent;

    private final SilenceWatch silence;

    /** Nodes that do not answer. */
    private final Set<String> hung = new HashSet<>();

    /** Those of them that were replaced: Lettuce does not know them meanwhile. */
    private final Set<String> replaced = new HashSet<>();

    /** Masters that have lost their slots, and when. */
    private final Map<String, Long> deposed = new HashMap<>();

    /** Replicas that do not hold their master's data: they load, or their link is down. */
    private final Set<String> unready = new HashSet<>();

    /** Nodes that were asked and live, and when they may be asked again; blocking commands are silent too. */
    private final Map<String, Quiet> quiet = new HashMap<>();

    private final Set<String> asked = new HashSet<>();

    /** How many clients there are, as far as a server has told; 0 while none has. */
    private long crowd;

    private boolean roleRefused;

    private record Quiet(long until, long lengthMs) {
    }

    HungNodes(TopologyAgent agent, SilenceWatch silence) {
        this.agent = agent;
        this.silence = silence;
    }

    /** They come back one after another when a node restarts: it falls slowly. */
    void crowd(long clients) {
        crowd = Math.max(Math.min(clients, 1_000_000), crowd * 9 / 10);
    }

    long crowd() {
        return crowd;
    }

    boolean isHung(String id) {
        return hung.contains(id);
    }

    /**
     * Whether a node does not answer and another has its place. Taken from Lettuce's nodes, its connections are closed, and
     * what waits for one of them to come back goes where the slots are.
     */
    boolean isReplaced(String id) {
        return replaced.contains(id);
    }

    /** Ids of nodes that must not be read from, where they are replicas. */
    Set<String> left() {
        Set<String> left = new HashSet<>(unready);
        left.addAll(hung);
        return left;
    }

    void start() {
        if (agent.options.getHungAfter().isZero()) {
            return;
        }
        silence.onClosed(address -> agent.execute(() -> {
            suspect(address);
            restarted(address);
        }));
        tick();
    }

    private void tick() {
        silence.silent(System.nanoTime(), agent.options.getHungAfter()).forEach(this::suspect);
        agent.schedule(TICK_MS, this::tick);
    }

    private void suspect(String address) {
        Node node = silence.node(agent.known(), address);
        if (node == null || hung.contains(node.id()) || !asked.add(node.id())) {
            return;
        }
        Quiet before = quiet.get(node.id());
        long now = System.nanoTime();
        if (before != null && now < before.until()) {
            asked.remove(node.id());
            return;
        }
        Duration patience = agent.links.isWarm(agent.uri(node)) ? warm() : TopologyAgent.PATIENCE;
        answers(node, patience, alive -> {
            asked.remove(node.id());
            // Much later than it should have been: we ourselves stood still, and know nothing.
            boolean late = System.nanoTime() - now > patience.plusMillis(150).toNanos();
            if (!alive && late) {
                return;
            }
            if (alive) {
                boolean again = before != null && now - before.until() < Duration.ofSeconds(10).toNanos();
                long length = again ? Math.min(before.lengthMs() * 2, 5000) : 200;
                quiet.put(node.id(), new Quiet(System.nanoTime() + Duration.ofMillis(length).toNanos(), length));
                deposed.remove(node.id());
            } else {
                silent(node);
            }
        });
    }

    /** A replica that closed connections may have restarted, and load. */
    private void restarted(String address) {
        Node node = silence.node(agent.known(), address);
        if (node == null || node.master() || roleRefused || hung.contains(node.id()) || unready.contains(node.id())) {
            return;
        }
        agent.links.ask(agent.uri(node), TopologyAgent.PATIENCE, commands -> commands.role()).whenCompleteAsync((role, error) -> {
            Node now = agent.known().byId(node.id());
            boolean says = error == null ? !isReady(role, null) : Failures.isReply(error) && !Failures.isRefusal(error);
            if (says && now != null && !now.master() && !hung.contains(node.id())) {
                leave(node.id());
            }
        }, agent.loop);
    }

    /** Not read from until it is ready. False where that was so before. */
    private boolean leave(String id) {
        if (!unready.add(id)) {
            return false;
        }
        agent.apply();
        whenReady(id, 0);
        return true;
    }

    private static boolean isReady(List<Object> role, Throwable error) {
        return error == null && role.size() > 3 && "slave".equals(role.get(0)) && "connected".equals(role.get(3));
    }

    private Duration warm() {
        Duration after = agent.options.getHungAfter();
        return after.toMillis() < 100 ? Duration.ofMillis(100) : after;
    }

    private interface Answer {

        void is(boolean alive);

    }

    /** An error reply is a sign of life as well. */
    private void answers(Node node, Duration patience, Answer answer) {
        agent.links.ask(agent.uri(node), patience, commands -> commands.ping()).whenCompleteAsync((ok, error) -> {
            if (!agent.isClosed()) {
                answer.is(error == null || Failures.isReply(error));
            }
        }, agent.loop);
    }

    private void silent(Node node) {
        Node now = agent.known().byId(node.id());
        if (now == null || !hung.add(node.id())) {
            return;
        }
        logger.info("Node {} does not answer; {}", node.address(),
                now.master() ? "asking its replicas who is master" : "not reading from it");
        if (replace(now) || !now.master()) {
            agent.apply();
        }
        chase(node.id(), isLead(now), 0);
    }

    private static boolean isLead(Node node) {
        return node.master() && !node.slots().isEmpty();
    }

    /**
     * Until it answers, or is gone.
     *
     * @param times since it became what it is: while a master has no successor it is urgent, later on no more
     */
    private void chase(String id, boolean wasLead, int times) {
        Node node = agent.known().byId(id);
        if (node == null || !hung.contains(id)) {
            hung.remove(id);
            return;
        }
        knock(node);
        boolean lead = isLead(node);
        int now = lead == wasLead ? times : 0;
        if (lead) {
            agent.known().replicasOf(id).forEach(this::askRole);
        }
        // Nobody has told how many we are: as many as there may be, then, after the first seconds.
        long few = Math.max(40, 1000L * crowd / ROLES_PER_S);
        long many = Math.min(1000, 40L << Math.min(now / 16, 5));
        long period = Math.min(1000, crowd > 0 ? few : many);
        period = lead ? period : Math.min(30_000, 500L << Math.min(now / 4, 6));
        agent.schedule(period / 2 + agent.random.nextLong(period), () -> chase(id, lead, now + 1));
    }

    /** Asks a node that did not answer whether it is back. */
    private void knock(Node node) {
        String id = node.id();
        answers(node, TopologyAgent.PATIENCE, alive -> {
            if (alive && hung.remove(id)) {
                logger.info("Node {} answers again", node.address());
                boolean missing = replaced.remove(id);
                deposed.remove(id);
                if (node.master() || roleRefused) {
                    agent.apply();
                } else if (!leave(id) && missing) { // it may have restarted
                    agent.apply();
                }
                settle(id, 0);
            }
        });
    }

    /** Whether this node is replaced from now on; nodes have to be applied then. */
    private boolean replace(Node node) {
        Long since = deposed.get(node.id());
        // One that has given its last slot away is still a master, and well.
        boolean another = since != null && System.nanoTime() - since < DEPOSED.toNanos() && (!node.master() || node.failed());
        if (!another || !replaced.add(node.id())) {
            return false;
        }
        silence.giveUp(agent.known(), node, "Node " + node.address()
                + " does not answer and has lost its slots; whether it executed this command is not known");
        return true;
    }

    /** A master that was replaced hears of it some time after it is back, and tells nobody. */
    private void settle(String id, int times) {
        agent.request("a node that answers again", List.of(), Duration.ofMillis(300));
        agent.schedule(500L << Math.min(times, 6), () -> {
            Node node = agent.known().byId(id);
            if (node != null && node.master() && node.slots().isEmpty() && times < 10) {
                settle(id, times + 1);
            }
        });
    }

    private void askRole(Node replica) {
        if (roleRefused) {
            agent.request("a master that is silent", List.of(replica.address()), Duration.ofMillis(200));
            return;
        }
        agent.links.ask(agent.uri(replica), ROLE_PATIENCE, commands -> commands.role()).whenCompleteAsync((role, error) -> {
            if (error != null && Failures.isRefusal(error)) {
                roleRefused = true;
                agent.logOnce("role", "This user may not ask for ROLE (ACL: +role): CLUSTER NODES is asked instead");
            }
            Node now = agent.known().byId(replica.id());
            if (error == null && !role.isEmpty() && "master".equals(role.get(0)) && now != null && !now.master()) {
                agent.refresh(List.of(replica.address()));
            }
        }, agent.loop);
    }

    /**
     * Looks for masters that were replaced, and for replicas that were not there, or not up, or masters until now.
     *
     * @param now what is known already
     * @return whether nodes have to be applied even if they are the same as before.
     */
    boolean changed(Topology before, Topology now) {
        hung.removeIf(id -> now.byId(id) == null);
        replaced.removeIf(id -> !hung.contains(id) || isLead(now.byId(id)));
        deposed.keySet().removeIf(id -> now.byId(id) == null || isLead(now.byId(id)));
        for (Node old : before.nodes()) {
            Node node = now.byId(old.id());
            if (node != null && isLead(old) && !isLead(node)) {
                deposed.put(node.id(), System.nanoTime());
                quiet.remove(node.id());
            }
            boolean back = node != null && (old.failed() && !node.failed() || !old.connected() && node.connected());
            if (back && hung.contains(node.id())) {
                knock(node);
            }
        }
        boolean left = false;
        for (String id : hung) {
            left |= replace(now.byId(id));
        }
        unready.removeIf(id -> now.byId(id) == null || now.byId(id).master());
        quiet.keySet().removeIf(id -> now.byId(id) == null);
        if (before.isEmpty()) {
            return false;
        }
        for (Node node : now.nodes()) {
            Node old = before.byId(node.id());
            boolean back = old == null || old.failed() || old.master();
            if (!node.master() && !node.failed() && back && !roleRefused && unready.add(node.id())) {
                whenReady(node.id(), 0);
            }
        }
        return left;
    }

    /** Reads from a replica again once its link to its master is up: until then it is loading, or serves old data. */
    private void whenReady(String id, int times) {
        Node node = agent.known().byId(id);
        if (node == null || !unready.contains(id)) {
            return;
        }
        agent.links.ask(agent.uri(node), TopologyAgent.PATIENCE, commands -> commands.role()).whenCompleteAsync((role, error) -> {
            if (isReady(role, error) || (error != null && Failures.isRefusal(error))) {
                if (unready.remove(id)) {
                    agent.apply();
                }
            } else {
                long wait = Math.min(5000, 250L << Math.min(times, 5));
                agent.schedule(wait / 2 + agent.random.nextLong(wait), () -> whenReady(id, times + 1));
            }
        }, agent.loop);
    }

}
