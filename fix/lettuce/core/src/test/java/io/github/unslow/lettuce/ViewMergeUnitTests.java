package io.github.unslow.lettuce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class ViewMergeUnitTests {

    private static final Topology BEFORE = Views.of("a:1 master e1 0-99", "b:2 master e2 100-199", "c:3 replica a e1");

    @Test
    void theHigherEpochOwnsASlotWhoeverSaysIt() {
        Topology behind = Views.of("*a:1 master e1 0-99", "b:2 master e2 100-199", "c:3 replica a e1");
        Topology ahead = Views.of("a:1 master e1 0-49", "*b:2 master e3 50-199", "c:3 replica a e1");
        for (List<Topology> views : List.of(List.of(behind, ahead), List.of(ahead, behind))) {
            Topology merged = ViewMerge.merge(Topology.EMPTY, views);
            assertEquals("b", Views.owner(merged, 50));
            assertEquals("a", Views.owner(merged, 49));
        }
    }

    @Test
    void anOldViewTurnsNothingBack() {
        Topology known = Views.of("a:1 master e1 0-49", "b:2 master e3 50-199", "c:3 replica a e1");
        Topology merged = ViewMerge.merge(known, List.of(BEFORE));
        assertEquals("b", Views.owner(merged, 50));
        assertEquals(3, merged.byId("b").epoch());
    }

    @Test
    void aNodesOwnWordCountsMoreThanWhatIsSaidInItsName() {
        // b got the slots without a new epoch, being the newest already; c still names a.
        Topology own = Views.of("a:1 master e1 0-49", "*b:2 master e2 50-199", "c:3 replica a e1");
        Topology other = Views.of("a:1 master e1 0-99", "b:2 master e2 100-199", "*c:3 replica a e1");
        assertEquals("b", Views.owner(ViewMerge.merge(BEFORE, List.of(other, own)), 60));
    }

    @Test
    void aClaimThatIsWithdrawnIsGone() {
        Topology told = BEFORE.moved(Views.of("x:9 master e0 0-9").byId("x").slots(), BEFORE.byId("b"));
        assertEquals("b", Views.owner(told, 5));
        // It was not true: b itself knows nothing of it.
        Topology own = Views.of("a:1 master e1 0-99", "*b:2 master e2 100-199", "c:3 replica a e1");
        assertEquals("a", Views.owner(ViewMerge.merge(told, List.of(own)), 5));
    }

    @Test
    void aPromotedReplicaIsMasterAndTheOldOneFollows() {
        Topology after = Views.of("a:1 replica c e5", "b:2 master e2 100-199", "*c:3 master e5 0-99");
        Topology merged = ViewMerge.merge(BEFORE, List.of(after, BEFORE));
        assertTrue(merged.byId("c").master());
        assertEquals("c", Views.owner(merged, 0));
        assertFalse(merged.byId("a").master());
    }

    @Test
    void aNodeIsForgottenWhenEveryGoodViewLacksIt() {
        Topology without = Views.of("*a:1 master e1 0-99", "b:2 master e2 100-199");
        assertNull(ViewMerge.merge(BEFORE, List.of(without, without)).byId("c"));
        assertNotNull(ViewMerge.merge(BEFORE, List.of(without, BEFORE)).byId("c"));
    }

    @Test
    void whoWasResetOrHasJustJoinedIsNoWitness() {
        Topology reset = ViewMerge.merge(BEFORE, List.of(Views.of("*c:3 master e0")));
        assertEquals(3, reset.nodes().size());
        assertEquals("a", Views.owner(reset, 0), "nobody lost a slot by it");
        assertEquals("b", Views.owner(reset, 199));
        Topology joined = ViewMerge.merge(BEFORE, List.of(Views.of("*n:9 master e0", "b:2 master e2 100-199")));
        assertEquals("a", Views.owner(joined, 0));
        // Most of the nodes may be gone, when those that are left own everything.
        assertEquals(1, ViewMerge.merge(BEFORE, List.of(Views.of("*b:2 master e7 0-199"))).nodes().size());
    }

    @Test
    void aReplicasEpochIsItsMastersAndMayBeLower() {
        Topology known = Views.of("a:1 master e57 0-99", "b:2 master e2 100-199", "c:3 replica a e57");
        Topology moved = Views.of("*a:1 master e57 0-99", "b:2 master e2 100-199", "c:3 replica b e2");
        assertEquals("b", ViewMerge.merge(known, List.of(moved)).byId("c").masterId());
    }

    @Test
    void anotherClusterIsNoView() {
        assertTrue(ViewMerge.isOther(BEFORE, Views.of("x:1 master e1 0-16383")));
        assertFalse(ViewMerge.isOther(BEFORE, Views.of("x:1 master e1 0-1", "a:9 master e1")));
        assertFalse(ViewMerge.isOther(Topology.EMPTY, BEFORE));
    }

}
