//! How the system gives memory to this process.

use rustix::thread::disable_transparent_huge_pages;

/// Makes the system give memory in pages of 4 KiB to this process and to those that it starts.
///
/// The allocator asks for pages of 2 MiB. It gives idle memory back and takes it again all the time, and each such page is
/// zeroed as a whole although a few KiB of it are used: an eighth of hook-svc's processor time, and a third of the resident
/// memory of services with little to do (`docs/performance.md`).
///
/// # Errors
/// Returns the system's error if it cannot be done.
pub(super) fn use_small_pages() -> std::io::Result<()> {
    Ok(disable_transparent_huge_pages(true)?)
}
