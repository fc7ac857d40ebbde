//! Functions that the host offers to hooks: the model, HTTP requests, search and embeddings.

pub(crate) mod answers;
pub(crate) mod embedder;
pub mod fetch;
pub mod files;
pub mod llm;
pub mod search_host;
pub mod server_origin;
