//! Sources of platforms' accounts against stand-ins that misbehave as the vendors do, and a real nats-server.

mod bot_api;
mod contract;
mod process;
mod slack;
mod slack_socket;
mod socket_api;
mod telegram;
mod web_api;
mod world;
