//! Sources of platforms' accounts against stand-ins that misbehave as the vendors do, and a real nats-server.

mod bot_api;
mod contract;
mod discord;
mod discord_api;
mod discord_limits;
mod discord_process;
mod discord_rest;
mod discord_rights;
mod faults;
mod file_shelf;
mod files;
mod late_files;
mod pairing;
mod process;
mod slack;
mod slack_process;
mod slack_socket;
mod socket_api;
mod telegram;
mod telegram_webhook;
mod watermark;
mod web_api;
mod world;
