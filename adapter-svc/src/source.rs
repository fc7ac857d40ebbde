//! Sources: the ways in which outside events reach Nexus.

pub mod cloudevents;
pub mod events;
pub mod post_events;
pub mod webchat;
pub mod webhook;
