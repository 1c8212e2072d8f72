//! Drills: a lab, a load, faults on a time line and checkers, as data; the evidence is kept.
//!
//! [`spec::Drill`] is the data, [`run::run`] plays one variant of it against real servers and judges what the clients
//! saw. A drill verifies its own fault and its own load: what cannot be shown to have happened is `unknown`, never
//! passed.

mod caller;
pub mod case;
pub mod check;
mod error;
pub mod history;
pub mod load;
mod locks;
pub mod observe;
pub mod places;
pub mod run;
pub mod shootout;
pub mod spec;
pub mod stage;
pub mod store;

pub use error::{BadDrill, BadPlan, CaseError, Error, TooManyOperations, Unfit};
