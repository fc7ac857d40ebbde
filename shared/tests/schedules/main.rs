//! The expander against public vectors, and its rules for the days on which clocks change.

mod clocks;
mod cron;
mod cron_agree;
mod fixtures;
mod oracle;
mod oracle_rules;
mod rrule;
