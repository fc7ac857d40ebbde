//! A small kubelet: runs pods as processes of this machine, so that manifests are tried and not read.
//!
//! It does as much of Kubernetes' work as the manifests of this repository use: [`environment`] and [`volume`] give a container
//! its variables and files, [`container`] makes it a process, [`probe`], [`memory`] and [`pod`] say how it lives and ends.
//! [`crate::cluster`] says which pods there are, and [`crate::network`] which hosts they reach. It needs root; seccomp profiles
//! are not enforced.

pub mod container;
pub mod environment;
pub mod memory;
pub mod pod;
pub mod probe;
pub mod volume;
