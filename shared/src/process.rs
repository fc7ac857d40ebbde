//! The shell around every service: configuration, telemetry, health, connection, ordered shutdown.

pub mod lifecycle;
