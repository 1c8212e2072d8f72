//! Why the writer ends by itself.

/// See the module. `reply` is the server's error.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// AUTH failed. The server's words are left out: they may repeat what was sent.
    #[error("{address}: password refused; check UNSLOW_PASSWORD or the URL")]
    PasswordRefused { address: String },
    /// The server answers nothing without a password.
    #[error("{address}: it wants a password; set UNSLOW_PASSWORD, or use redis://user:password@host")]
    PasswordWanted { address: String },
    /// The database cannot be selected, or the guard not be loaded.
    #[error("{address}: {reply}")]
    Greeting { address: String, reply: String },
    /// WAIT is refused.
    #[error("WAIT: {reply}")]
    Wait { reply: String },
    /// A command is refused for a reason that no retry and no other message changes; with the message's place.
    #[error("{reply} ({place})")]
    Refused { reply: String, place: String },
    /// The kernel refuses what the event loop needs.
    #[error("the writer's event loop: {0}")]
    EventLoop(std::io::Error),
}
