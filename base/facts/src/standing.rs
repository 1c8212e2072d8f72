//! What a server's process did while an answer was owed.

use serde::{Deserialize, Serialize};

/// The main thread of a server's process as the kernel of its machine showed it, again and again while the server owed
/// us an answer. A look is a moment: what it did between two is not seen, but its time on a processor is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Standing {
    /// Process id on its machine.
    pub pid: u32,
    /// When it was looked at last, unix time in ms.
    pub at_ms: u64,
    /// How often it was looked at.
    pub looks: u32,
    /// From the first look to the last, in ms.
    pub span_ms: u64,
    /// Time on a processor outside the kernel in that time, in ms; counted in ticks of 10 ms on most kernels.
    pub user_ms: u64,
    /// The same in the kernel.
    pub system_ms: u64,
    /// Ready to run but waiting for a processor, in ms. None where the kernel does not count it.
    pub waited_ms: Option<u64>,
    /// What it was seen doing, the most frequent first.
    pub seen: Vec<Doing>,
}

/// What a thread was seen doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Doing {
    /// Its state.
    pub state: ThreadState,
    /// The function of the kernel that it waits in (`/proc/PID/wchan`). None where it waits in none, and without the
    /// right to see it.
    pub wait_channel: Option<String>,
    /// Functions of the kernel that it was in, the innermost first (`/proc/PID/stack`, for root); none while it runs.
    pub stack: Vec<String>,
    /// In how many looks.
    pub looks: u32,
}

/// The state of a thread, as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// R: on a processor, or ready to run.
    Runnable,
    /// S: it waits for something that may take for ever; an idle server does.
    Sleeping,
    /// D: it waits for something that no signal ends, a disk for one.
    Uninterruptible,
    /// T: stopped by a signal.
    Stopped,
    /// t: stopped by a debugger.
    Traced,
    /// Another, or one that is ending.
    Other,
}

impl Standing {
    /// The state that it was seen in at every look; `None` where it was in several.
    pub fn only_state(&self) -> Option<ThreadState> {
        let first = self.seen.first()?.state;
        self.seen.iter().all(|doing| doing.state == first).then_some(first)
    }
}
