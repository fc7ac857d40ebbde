//! Sources: the ways in which outside events reach Nexus.

pub mod cloudevents;
pub mod discord;
pub mod door;
pub mod events;
pub mod media;
pub mod merge;
pub mod port;
pub mod post_events;
pub mod posts;
pub mod raw_payload;
pub mod slack;
pub mod telegram;
pub mod webchat;
pub mod webhook;
