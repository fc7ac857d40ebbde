//! Sources: what happens outside, as it reaches us.

pub mod cloudevents;
pub mod events;
pub mod http;
pub mod webchat;
pub mod webhook;
