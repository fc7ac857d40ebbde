//! The users of the bus: what each may do, what none can do by a detour, and how they come and go.

mod bench;

mod limits;
mod rights;
mod rotation;
mod routes;
mod stories;
