//! One channel name in each slot, for subscriptions that tell when the slot leaves.

use std::sync::LazyLock;

use unslow_topology::{SLOTS, slot_of};

/// What the names begin with, for the ACL rule `&unslow:*`.
const PREFIX: &str = "unslow:";

static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut names = vec![String::new(); usize::from(SLOTS)];
    let mut missing = names.len();
    // About 170,000 tries, some milliseconds.
    for n in 0u64.. {
        let name = format!("{PREFIX}{n}");
        let place = &mut names[usize::from(slot_of(name.as_bytes()))];
        if place.is_empty() {
            *place = name;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    names
});

/// The name in `slot`.
pub fn channel(slot: u16) -> &'static str {
    &NAMES[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_name_in_every_slot() {
        assert!((0..SLOTS).all(|slot| slot_of(channel(slot).as_bytes()) == slot && channel(slot).len() <= 14));
    }
}
