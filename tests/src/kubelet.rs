//! A small kubelet: runs pods as processes of this machine, so that manifests are tried and not read.
//!
//! It is as much of Kubernetes' as the manifests of this repository use: [`environment`] and [`volume`] say what a container
//! finds, [`container`] how it becomes a process, [`probe`], [`memory`] and [`pod`] how it lives and ends. Which pods there
//! are is the business of [`crate::cluster`], whom they reach that of [`crate::network`]. It needs root; seccomp profiles are
//! not enforced.

pub mod container;
pub mod environment;
pub mod memory;
pub mod pod;
pub mod probe;
pub mod volume;
