//! Manifests of Kubernetes: [`kustomize`] renders them, [`kinds`] and [`custom`] say what of them is read, and [`objects`]
//! what is in force once they were applied.
//!
//! They are read strictly, because a reader that ignores what it does not know passes manifests that no cluster takes: of
//! what decides how a pod runs each field is read, and one that is unknown fails.

pub mod custom;
pub mod kinds;
pub mod kustomize;
pub mod objects;
