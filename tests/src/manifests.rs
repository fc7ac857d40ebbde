//! Manifests of Kubernetes: [`kustomize`] renders them, [`kinds`] and [`custom`] say which fields are read, and [`objects`]
//! which objects are in force once they were applied.
//!
//! They are read strictly, because a reader that ignores unknown fields passes manifests that no cluster takes: every field
//! that decides how a pod runs is read, and an unknown one fails.

pub mod custom;
pub mod kinds;
pub mod kustomize;
pub mod objects;
