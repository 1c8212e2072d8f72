//! Which of a server's connections go to another thread, and to which one.

/// When connections of one server are spread over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// While the thread that has them is busy, and processors are free.
    #[default]
    Busy,
    /// Evenly, over every thread that has no server of its own.
    Always,
    /// A server has one thread.
    Never,
}

/// A thread, and how much it has to do: thousandths of its time, or connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub thread: usize,
    pub load: u32,
}

/// Who is to have a part of a thread's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heir {
    /// One that has connections of this server already, and this much less to do.
    Member { thread: usize, less: u32 },
    /// One that has none, if there is one.
    New,
}

/// Below this difference two threads have as much to do as each other.
pub fn heir(load: u32, others: impl Iterator<Item = Member>, margin: u32) -> Heir {
    match others.min_by_key(|other| other.load) {
        Some(least) if load >= least.load.saturating_add(margin) => {
            Heir::Member { thread: least.thread, less: load - least.load }
        }
        _ => Heir::New,
    }
}

/// Which of these (by number, with what each has had to do) are to go, so that about `part` of `whole` of all that they
/// do goes with them. One that does most of it alone stays: another thread would be as busy with it.
pub fn chosen(mut all: Vec<(usize, u64)>, part: u32, whole: u32) -> Vec<usize> {
    let sum: u64 = all.iter().map(|(_, load)| load).sum();
    let wanted = sum * u64::from(part) / u64::from(whole.max(1));
    all.sort_unstable_by_key(|(at, load)| (std::cmp::Reverse(*load), *at));
    let mut gone = 0;
    let fits = |(at, load): (usize, u64)| {
        let fits = load > 0 && gone + load <= wanted;
        gone += if fits { load } else { 0 };
        fits.then_some(at)
    };
    all.into_iter().filter_map(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_with_the_least_to_do_gets_a_part() {
        let others = |loads: &[u32]| -> Vec<Member> {
            loads.iter().enumerate().map(|(thread, load)| Member { thread, load: *load }).collect()
        };
        let of = |load, loads: &[u32]| heir(load, others(loads).into_iter(), 200);
        assert_eq!(of(950, &[]), Heir::New);
        assert_eq!(of(950, &[900, 400]), Heir::Member { thread: 1, less: 550 });
        assert_eq!(of(950, &[900, 760]), Heir::New, "all of them are busy");
        assert_eq!(of(100, &[u32::MAX]), Heir::New);
    }

    #[test]
    fn about_half_of_the_work_goes() {
        let of = |loads: &[u64], part, whole| chosen(loads.iter().copied().enumerate().collect(), part, whole);
        assert_eq!(of(&[10; 6], 1, 2).len(), 3);
        assert_eq!(of(&[5, 40, 5, 10], 1, 2), [3, 0, 2], "the large one would be more than half");
        assert_eq!(of(&[0, 0, 7, 7], 1, 2), [2], "what rests stays");
        assert!(of(&[100], 1, 2).is_empty() && of(&[], 1, 2).is_empty() && of(&[1, 1], 1, 0).len() == 2);
    }
}
