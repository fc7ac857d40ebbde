//! Ports for servers that cannot take one by themselves and tell it.

use std::io::{Error, ErrorKind};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that are tried: below those that Linux gives to outgoing connections, and to programs that ask for any port, by
/// default (32768 to 60999). One of those may be in use by the time that the server takes it.
const TRIED: Range<u32> = 20_000..32_000;

/// Distance between the first ports that processes with neighbouring ids try.
const STRIDE: u32 = 97;

/// Returns a port of 127.0.0.1 at which nothing listened a moment ago. One process is given no port twice until all were tried.
///
/// # Errors
/// Fails if something listens at all of the ports that are tried.
///
/// # Examples
/// ```
/// let port = shared::process::free_port()?;
/// let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
/// # assert_eq!(listener.local_addr()?.port(), port);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn free_port() -> std::io::Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = TRIED.end - TRIED.start;
    let first = std::process::id().wrapping_mul(STRIDE);

    (0..count)
        .find_map(|_| {
            let number = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
            let port = u16::try_from(TRIED.start + number % count).ok()?;
            TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
        })
        .ok_or_else(|| Error::new(ErrorKind::AddrInUse, "no port from 20000 to 31999 of 127.0.0.1 is free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_listened_at() {
        let ports = [(); 3].map(|()| free_port().expect("a port"));
        let held = ports.map(|port| TcpListener::bind(("127.0.0.1", port)).expect("it is free"));
        let next = free_port().expect("a port");
        assert!(
            TRIED.contains(&u32::from(next)) && !ports.contains(&next),
            "{next}, {ports:?}"
        );
        drop(held);
    }
}
