//! Checks of the adapter's section against other sections.

use std::collections::BTreeMap;

use super::AdapterConfig;

impl AdapterConfig {
    /// Returns the tokens whose source is the channel of one of `edges` (name and channel), each as `key: expected
    /// value`. The ids of both would have the same prefix, so that each could use the other's ids.
    #[must_use]
    pub fn faults_beside(&self, edges: &BTreeMap<String, String>) -> Vec<String> {
        let mut faults = Vec::new();
        for (index, token) in self.http.tokens.iter().enumerate() {
            for (edge, channel) in edges {
                if channel.eq_ignore_ascii_case(&token.source) {
                    faults.push(format!(
                        "http.tokens[{index}].source: `{channel}` is the channel of edges.{edge}, whose ids begin with it; choose \
                         another"
                    ));
                }
            }
        }

        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_s_source_is_the_channel_of_an_edge() {
        let text = "[[http.tokens]]\nname = 'crm'\nsha256 = ''\nsource = 'Telegram'\nchannels = ['crm']\n";
        let config: AdapterConfig = toml::from_str(text).expect("it parses");
        let edge = |channel: &str| BTreeMap::from([("roof".to_owned(), channel.to_owned())]);
        let faults = config.faults_beside(&edge("telegram"));

        assert!(
            faults.len() == 1
                && faults[0].starts_with("http.tokens[0].source: `telegram` is the channel of edges.roof"),
            "{faults:?}"
        );
        assert_eq!(config.faults_beside(&edge("signal")), Vec::<String>::new());
    }
}
