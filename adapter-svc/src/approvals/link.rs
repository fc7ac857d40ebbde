//! Links of cards: their signature, and the tap on their page. *Pure.*
//!
//! A link is valid for one person, channel, approval and hash of arguments, until the approval expires. Opening its
//! page decides nothing; the page's form has a stamp of its own that is valid for five minutes. Source:
//! `docs/design/sessions.md` §8 (signed link).

use serde::Deserialize;
use shared::model::approval_api::link_text;
use shared::model::time::UnixMillis;

use crate::source::webhook::signature::{HashAlgorithm, SignatureChecks, SignatureError, SigningKey, compute_code};

/// The query of a link, after the approval's id; a form has the same fields.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LinkClaims {
    /// Id of the person.
    pub by: String,
    /// Channel to which the person's card was sent.
    pub channel: String,
    /// SHA-256 in hex of the requested arguments.
    pub hash: String,
    /// Expiry of the approval, in Unix milliseconds.
    pub until: i64,
    /// Signature of the link, in hex.
    pub sig: String,
}

/// A tap on a button of the page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LinkDecision {
    /// Id of the person, as in [`LinkClaims`].
    pub by: String,
    /// Channel of the card, as in [`LinkClaims`].
    pub channel: String,
    /// Hash of the arguments, as in [`LinkClaims`].
    pub hash: String,
    /// Expiry of the approval, as in [`LinkClaims`].
    pub until: i64,
    /// Signature of the link, as in [`LinkClaims`].
    pub sig: String,
    /// Time the page was made, in Unix seconds.
    pub at: i64,
    /// Stamp of the page, in hex.
    pub stamp: String,
    /// Decision: `approve` or `deny`.
    pub say: String,
}

fn bytes(hex: &str) -> Vec<Vec<u8>> {
    hex::decode(hex).into_iter().collect()
}

/// Returns the stamp of a page that was made at `at`, for the link `sig` of the approval `id`.
#[must_use]
pub fn page_stamp(key: &SigningKey, id: &str, at: i64, sig: &str) -> String {
    let text = format!("page.{id}.{at}.{sig}");
    hex::encode(compute_code(HashAlgorithm::Sha256, key, &[text.as_bytes()]))
}

impl LinkClaims {
    /// Checks that the link was made for the approval `id`, and is valid at `now`.
    ///
    /// # Errors
    /// Returns [`SignatureError`] with the reason if not.
    pub fn verify(&self, checks: &SignatureChecks, id: &str, now: UnixMillis) -> Result<(), SignatureError> {
        let text = link_text(id, &self.by, &self.channel, &self.hash, self.until);
        checks.check_signature(HashAlgorithm::Sha256, &[text.as_bytes()], &bytes(&self.sig))?;
        if now.0 < self.until {
            return Ok(());
        }
        Err(SignatureError::Expired {
            age_s: (now.0 - self.until) / 1_000,
            tolerance_s: 0,
        })
    }
}

impl LinkDecision {
    /// Checks that the tap comes from a page that was made here for the approval `id`, at most five minutes ago.
    ///
    /// # Errors
    /// Returns [`SignatureError`] with the reason if not.
    pub fn verify(&self, checks: &SignatureChecks, id: &str, now: UnixMillis) -> Result<(), SignatureError> {
        let link = LinkClaims {
            by: self.by.clone(),
            channel: self.channel.clone(),
            hash: self.hash.clone(),
            until: self.until,
            sig: self.sig.clone(),
        };

        link.verify(checks, id, now)?;
        let text = format!("page.{id}.{}.{}", self.at, self.sig);
        checks.check_signature(HashAlgorithm::Sha256, &[text.as_bytes()], &bytes(&self.stamp))?;

        checks.check_age(self.at, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> SignatureChecks {
        SignatureChecks {
            keys: vec![SigningKey::new("secret")],
            tolerance_s: 300,
        }
    }

    fn link() -> LinkClaims {
        let text = link_text("a1", "ann", "webchat", "00ff", 1_000_000);
        LinkClaims {
            by: "ann".to_owned(),
            channel: "webchat".to_owned(),
            hash: "00ff".to_owned(),
            until: 1_000_000,
            sig: hex::encode(compute_code(
                HashAlgorithm::Sha256,
                &SigningKey::new("secret"),
                &[text.as_bytes()],
            )),
        }
    }

    #[test]
    fn a_link_is_good_for_one_approval_person_and_arguments_until_it_lapses() {
        let now = UnixMillis(999_999);
        let check = |link: &LinkClaims, id: &str, now| link.verify(&checks(), id, now).is_ok();
        assert!(check(&link(), "a1", now));
        assert!(!check(&link(), "a2", now));
        assert!(!check(&link(), "a1", UnixMillis(1_000_000)));

        for wrong in [
            LinkClaims {
                by: "bob".to_owned(),
                ..link()
            },
            LinkClaims {
                channel: "telegram".to_owned(),
                ..link()
            },
            LinkClaims {
                hash: "00fe".to_owned(),
                ..link()
            },
            LinkClaims {
                until: 2_000_000,
                ..link()
            },
            LinkClaims {
                sig: "zz".to_owned(),
                ..link()
            },
        ] {
            assert!(!check(&wrong, "a1", now), "{wrong:?}");
        }
    }

    #[test]
    fn a_tap_comes_from_a_fresh_page_of_its_own() {
        let tap = |at: i64, stamp: String| {
            let LinkClaims {
                by,
                channel,
                hash,
                until,
                sig,
            } = link();

            let say = "approve".to_owned();
            LinkDecision {
                by,
                channel,
                hash,
                until,
                sig,
                at,
                stamp,
                say,
            }
        };

        let made = |at: i64| page_stamp(&SigningKey::new("secret"), "a1", at, &link().sig);
        let check = |tap: &LinkDecision, now: i64| tap.verify(&checks(), "a1", UnixMillis::from_seconds(now)).is_ok();
        assert!(check(&tap(500, made(500)), 600));
        assert!(!check(&tap(500, made(500)), 801), "five minutes");
        assert!(!check(&tap(500, made(501)), 600));
        assert!(!check(&tap(500, link().sig), 600), "a link's signature is no stamp");
    }
}
