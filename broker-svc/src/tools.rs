//! Which tools a turn may use. *Pure.* Source: `sessions.md` "Context assembly"; `001_63a3878cde6a1bc3.txt` §5.

pub use shared::model::permission::permitted;
