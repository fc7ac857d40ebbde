//! Settings of the test run and of this machine, from environment variables.

/// Returns whether variable `name` equals `word`: `NEXUS_SANDBOX`, `NEXUS_NPM`, `NEXUS_MODELS`, `NEXUS_FIXTURES` = `absent`,
/// `NEXUS_HOOKS` = `long`, `CI` = `true`, …
#[must_use]
pub fn says(name: &str, word: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "a test binary is told by variables")]
    std::env::var(name).is_ok_and(|said| said == word)
}
