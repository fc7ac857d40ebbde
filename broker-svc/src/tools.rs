//! Which tools a turn may use, and what a turn for several dispatches may do. *Pure.*
//!
//! Source: `sessions.md` "Context assembly", "Queue modes"; `001_63a3878cde6a1bc3.txt` §5.

pub use shared::model::permission::combine::{merged, narrows};
pub use shared::model::permission::permitted;
