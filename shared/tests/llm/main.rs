//! The model client against a server that speaks the providers' wires, and what it reads without one.

mod answers;
mod broken;
mod faults;
mod loops;
mod plans;
mod reading;
mod recorded;
mod world;
