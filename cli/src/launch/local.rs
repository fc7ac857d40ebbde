//! Decides whether a stack's chat page is only for the person at this machine. *Pure.*

/// Variable that tells hook-svc so.
const LOCAL_CHAT: &str = "NEXUS__HOOKS__LOCAL_CHAT";

/// Returns the variable for the services' environment by which the chat page has the owner's session while no address
/// of the owner is configured. Returns `None` if `config` makes the page reachable under other names or addresses than
/// this machine's, or if it sets the value itself.
#[must_use]
pub fn chat(config: &str) -> Option<(String, String)> {
    let root: toml::Table = config.parse().ok()?;
    let value = |section: &str, key: &str| root.get(section).and_then(|section| section.get(key));
    let is_said = value("hooks", "local_chat").is_some();
    let listen = value("adapter", "listen")
        .and_then(toml::Value::as_str)
        .unwrap_or("127.0.0.1");
    let hosts = value("adapter", "hosts").and_then(toml::Value::as_array);
    let hosts: Vec<&str> = hosts.into_iter().flatten().filter_map(toml::Value::as_str).collect();
    let is_local = std::iter::once(listen).chain(hosts).all(is_here);

    (is_local && !is_said).then(|| (LOCAL_CHAT.to_owned(), "true".to_owned()))
}

/// Returns whether `host`, perhaps with a port, is this machine's own.
fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_for_others_is_nobodys_own() {
        for local in [
            "",
            "[adapter]\nlisten = \"127.0.0.1:8080\"",
            "[adapter]\nlisten = \"[::1]:8080\"\nhosts = [\"localhost\"]",
        ] {
            assert!(chat(local).is_some(), "{local}");
        }

        for open in [
            "[adapter]\nlisten = \"0.0.0.0:8080\"",
            "[adapter]\nhosts = [\"nexus.example\"]",
            "[hooks]\nlocal_chat = false",
        ] {
            assert_eq!(chat(open), None, "{open}");
        }
    }
}
