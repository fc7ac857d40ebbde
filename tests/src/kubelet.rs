//! A small kubelet: runs rendered manifests of Kubernetes as processes of this machine, so that they are tried and not read.
//!
//! It is as much of Kubernetes as the manifests of this repository use: [`kustomize`] renders them, [`manifest`],
//! [`custom`] and [`objects`] say what of them is read, [`rollout`] how many pods there are, [`environment`] and [`volume`] what a container finds, [`container`] how it
//! becomes a process, [`probe`], [`memory`] and [`pod`] how it lives, [`policy`], [`network`] and [`names`] whom it reaches, and
//! [`cluster`] runs it all as [`verbs`] ask it to. It needs root, `ip` and `nft`; seccomp profiles are not enforced.
//!
//! It is large for a part of tests, because a small one that ignores what it does not know passes manifests that
//! no cluster takes: each field is read, and one that is unknown fails. And what differs between a pod that is ready
//! and one that is not (probes, rollouts, network policies, limits of memory, KEDA's and Prometheus' objects) is what the
//! stories of pods are about.

pub mod cluster;
pub mod container;
pub mod custom;
pub mod environment;
pub mod kustomize;
pub mod manifest;
pub mod memory;
pub mod names;
pub mod network;
pub mod objects;
pub mod pod;
pub mod policy;
pub mod probe;
pub mod rollout;
pub mod verbs;
pub mod volume;
