//! Markdown as each platform shows it: what a reader sees, within which limits, whatever the source is.

mod corpus;
mod golden;
mod hostile;
mod law;
mod limits;
mod readers;
mod speed;
