//! What whoever runs the tests says about this machine, or asks of them: by environment variables.

/// Whether variable `name` says `word`: `NEXUS_SANDBOX`, `NEXUS_NPM`, `NEXUS_MODELS`, `NEXUS_FIXTURES` = `absent`,
/// `NEXUS_HOOKS` = `long`, `CI` = `true`, …
#[must_use]
pub fn says(name: &str, word: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "a test binary is told by variables")]
    std::env::var(name).is_ok_and(|said| said == word)
}
