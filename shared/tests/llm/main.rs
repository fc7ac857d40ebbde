//! The model client against a server that speaks the providers' wires.

mod answers;
mod broken;
mod loops;
mod world;
