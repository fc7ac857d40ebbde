//! Generic HMAC: header, algorithm, encoding, prefix and signed text are configured. *Pure.*

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;

use super::signature::{
    HashAlgorithm, SignatureChecks, SignatureError, VerifiedSignature, malformed_header, parse_seconds, required_header,
};

/// The encoding of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureEncoding {
    /// Hexadecimal digits, of either case.
    #[default]
    Hex,
    /// Base64 of RFC 4648 with padding.
    Base64,
}

/// The signature of a sender that follows no known scheme: `[adapter.webhook.<source>.hmac]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HmacConfig {
    /// Header with the signature.
    pub header: String,
    /// Hash function of the signature.
    pub algorithm: HashAlgorithm,
    /// Encoding of the signature.
    pub encoding: SignatureEncoding,
    /// Text before the signature, such as `sha256=`.
    pub prefix: String,
    /// Header with the time of signing, in seconds since the epoch; absent = no time is signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp_header: Option<String>,
    /// Header with the delivery's id, which is the event's id if `signed` contains `{id}`, otherwise metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_header: Option<String>,
    /// Template of the signed text, with `{timestamp}`, `{id}` and `{body}`. The default is `{timestamp}.{body}` if
    /// there is a timestamp header, otherwise `{body}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
}

impl Default for HmacConfig {
    fn default() -> Self {
        Self {
            header: "x-signature".to_owned(),
            algorithm: HashAlgorithm::default(),
            encoding: SignatureEncoding::default(),
            prefix: String::new(),
            timestamp_header: None,
            id_header: None,
            signed: None,
        }
    }
}

impl HmacConfig {
    /// Returns the errors in the configuration, as `key: expected value`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let template = self.template_or_default();
        let mut faults = Vec::new();
        if template.matches("{body}").count() != 1 {
            faults.push("signed: expected `{body}` exactly once".to_owned());
        }

        if template.contains("{timestamp}") != self.timestamp_header.is_some() {
            faults.push("signed: expected `{timestamp}` if and only if `timestamp_header` is set".to_owned());
        }

        if template.contains("{id}") && self.id_header.is_none() {
            faults.push("id_header: required, because `signed` contains `{id}`".to_owned());
        }

        for (key, name) in [
            ("header", Some(&self.header)),
            ("timestamp_header", self.timestamp_header.as_ref()),
            ("id_header", self.id_header.as_ref()),
        ] {
            if name.is_some_and(|name| name.parse::<axum::http::HeaderName>().is_err()) {
                faults.push(format!("{key}: expected the name of an HTTP header"));
            }
        }

        faults
    }

    /// Returns whether the signature covers the delivery's id.
    fn signs_id(&self) -> bool {
        self.template_or_default().contains("{id}")
    }

    fn template_or_default(&self) -> &str {
        match (&self.signed, &self.timestamp_header) {
            (Some(template), _) => template,
            (None, Some(_)) => "{timestamp}.{body}",
            (None, None) => "{body}",
        }
    }

    fn decode(&self, text: &str) -> Option<Vec<u8>> {
        match self.encoding {
            SignatureEncoding::Hex => hex::decode(text).ok(),
            SignatureEncoding::Base64 => STANDARD.decode(text).ok(),
        }
    }
}

/// Checks a request against `config`.
///
/// # Errors
/// Returns [`SignatureError`] if the signature is missing, malformed, too old or wrong.
pub fn verify(
    config: &HmacConfig,
    checks: &SignatureChecks,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMillis,
) -> Result<VerifiedSignature, SignatureError> {
    let text = required_header(headers, &config.header)?;
    let given = text
        .strip_prefix(config.prefix.as_str())
        .and_then(|rest| config.decode(rest))
        .ok_or_else(|| malformed_header(&config.header, "the configured prefix and encoding"))?;

    let (written, timestamp) = match &config.timestamp_header {
        Some(name) => {
            let written = required_header(headers, name)?;
            let timestamp = parse_seconds(name, written)?;
            checks.check_age(timestamp, now)?;
            // The signature covers the text as written, not the parsed number.
            (written, Some(timestamp))
        }
        None => ("", None),
    };

    let id = config
        .id_header
        .as_ref()
        .map(|name| required_header(headers, name))
        .transpose()?;
    let fill = |part: &str| {
        part.replace("{timestamp}", written)
            .replace("{id}", id.unwrap_or_default())
    };

    // The body is hashed as a part of its own, so that its bytes need not be UTF-8.
    let (before, after) = config
        .template_or_default()
        .split_once("{body}")
        .unwrap_or((config.template_or_default(), ""));
    checks.check_signature(
        config.algorithm,
        &[fill(before).as_bytes(), body, fill(after).as_bytes()],
        &[given],
    )?;

    Ok(VerifiedSignature {
        delivery_id: id.filter(|_| config.signs_id()).map(str::to_owned),
        timestamp,
    })
}

#[cfg(test)]
mod tests {
    use super::super::signature::compute_code;
    use super::super::signature::tests::{checks, headers};
    use super::*;

    // RFC 4231, case 2.
    const DATA: &[u8] = b"what do ya want for nothing?";
    const HEX: &str = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";

    fn check(config: &HmacConfig, pairs: &[(&str, &str)], at: i64) -> Result<VerifiedSignature, SignatureError> {
        verify(
            config,
            &checks("Jefe"),
            &headers(pairs),
            DATA,
            UnixMillis::from_seconds(at),
        )
    }

    #[test]
    fn the_published_vector_is_accepted_in_both_encodings() {
        let hex_config = HmacConfig {
            prefix: "sha256=".to_owned(),
            ..HmacConfig::default()
        };
        assert!(check(&hex_config, &[("x-signature", &format!("sha256={HEX}"))], 0).is_ok());
        assert!(matches!(
            check(&hex_config, &[("x-signature", HEX)], 0),
            Err(SignatureError::Malformed { .. })
        ));

        let base = HmacConfig {
            encoding: SignatureEncoding::Base64,
            header: "X-Sig".to_owned(),
            ..HmacConfig::default()
        };
        let text = STANDARD.encode(hex::decode(HEX).unwrap());
        assert!(check(&base, &[("x-sig", &text)], 0).is_ok());
        assert_eq!(check(&base, &[("x-sig", "AAAA")], 0), Err(SignatureError::Mismatch));
    }

    #[test]
    fn a_template_signs_time_and_id() {
        let config = HmacConfig {
            algorithm: HashAlgorithm::Sha512,
            timestamp_header: Some("x-time".to_owned()),
            id_header: Some("x-id".to_owned()),
            signed: Some("v1:{id}:{timestamp}:{body}!".to_owned()),
            ..HmacConfig::default()
        };

        assert_eq!(config.find_faults(), Vec::<String>::new());

        let signature = hex::encode(compute_code(
            HashAlgorithm::Sha512,
            &checks("Jefe").keys[0],
            &[b"v1:7:100:", DATA, b"!"],
        ));
        let pairs = [("x-signature", signature.as_str()), ("x-time", "100"), ("x-id", "7")];
        let verified = check(&config, &pairs, 130).unwrap();

        assert_eq!(
            verified,
            VerifiedSignature {
                delivery_id: Some("7".to_owned()),
                timestamp: Some(100)
            }
        );
        assert!(matches!(
            check(&config, &pairs, 500),
            Err(SignatureError::Expired { .. })
        ));
    }

    #[test]
    fn an_id_that_is_not_signed_is_not_vouched_for() {
        let config = HmacConfig {
            id_header: Some("x-id".to_owned()),
            ..HmacConfig::default()
        };
        let verified = check(&config, &[("x-signature", HEX), ("x-id", "7")], 0).unwrap();
        assert_eq!(verified.delivery_id, None);
    }

    #[test]
    fn a_configuration_that_cannot_work_is_named() {
        let config = HmacConfig {
            header: "no good".to_owned(),
            signed: Some("{timestamp}{id}".to_owned()),
            ..HmacConfig::default()
        };
        assert_eq!(config.find_faults().len(), 4);
    }
}
