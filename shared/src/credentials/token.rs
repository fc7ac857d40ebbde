//! Tokens of operators, accounts and users, in the form that nats-server reads (JWT, `ed25519-nkey`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha512_256};

use super::key::{AuthKey, AuthKeyFault};
use crate::wire::rights::{BusAccount, BusRole, CHANNEL_TAG, PERSONA_TAG, ROLE_TAG, SHARED, SubjectRights};
use crate::wire::subject::token;

/// Version of the claims.
const VERSION: u8 = 2;

/// Signs `claims` of `subject` with `key`. The times are seconds since 1970.
fn sign(
    key: &AuthKey,
    (subject, name): (&str, &str),
    (issued, expires): (i64, Option<i64>),
    nats: Value,
) -> Result<String, AuthKeyFault> {
    let mut claims = Map::new();
    claims.insert("iat".to_owned(), issued.into());
    claims.insert("iss".to_owned(), key.public().into());
    claims.insert("sub".to_owned(), subject.into());
    claims.insert("name".to_owned(), name.into());
    if let Some(expires) = expires {
        claims.insert("exp".to_owned(), expires.into());
    }
    claims.insert("nats".to_owned(), nats);

    // The id of a token is the hash of its claims: the server takes a token of the same id for the same.
    let hash = Sha512_256::digest(Value::from(claims.clone()).to_string());
    claims.insert("jti".to_owned(), data_encoding::BASE32_NOPAD.encode(&hash).into());

    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = encode(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let signed = format!("{head}.{}", encode(claims.into()));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())?);

    Ok(format!("{signed}.{signature}"))
}

/// Returns the token of the operator `key`, whose servers tell their own affairs in the account `system`.
///
/// # Errors
/// Returns [`AuthKeyFault`] if the key cannot sign.
pub fn operator_token(key: &AuthKey, system: &str, issued: i64) -> Result<String, AuthKeyFault> {
    let nats = json!({"type": "operator", "version": VERSION, "system_account": system});
    sign(key, (&key.public(), "nexus"), (issued, None), nats)
}

/// A key that makes users of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleKey {
    /// The role.
    pub role: BusRole,
    /// Public half of the key.
    pub public: String,
}

/// Claims of an account's token.
#[derive(Debug, Clone)]
pub struct AccountToken<'a> {
    /// The account.
    pub account: BusAccount,
    /// Public keys of all accounts.
    pub accounts: &'a BTreeMap<BusAccount, String>,
    /// Keys that make users, of all accounts.
    pub keys: &'a [RoleKey],
    /// Users whose tokens are refused if they were issued until then, in seconds since 1970.
    pub revoked: &'a BTreeMap<String, i64>,
}

impl AccountToken<'_> {
    /// Returns the token as of `issued`, signed by the operator `key`. The server takes a token only if it was not
    /// issued before the one that it has.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the key cannot sign.
    pub fn sign(&self, key: &AuthKey, issued: i64) -> Result<String, AuthKeyFault> {
        let public = self.accounts.get(&self.account).map_or("", String::as_str);
        sign(key, (public, self.account.name()), (issued, None), self.claims())
    }

    fn claims(&self) -> Value {
        let mut limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": 0,
        });
        if let Some(most) = self.account.limits() {
            limits["conn"] = most.connections.into();
            limits["subs"] = most.subscriptions.into();
            limits["payload"] = most.payload_bytes.into();
        }
        if self.account.has_streams() {
            for key in ["mem_storage", "disk_storage", "streams", "consumer"] {
                limits[key] = json!(-1);
            }
        }

        let own_keys = self.keys.iter().filter(|key| key.role.account() == self.account);
        let signing_keys: Vec<Value> = own_keys
            .map(|key| {
                json!({
                    "kind": "user_scope", "key": key.public, "role": key.role.name(),
                    "template": template(&key.role.subjects()),
                })
            })
            .collect();

        let exports: Vec<Value> = SHARED
            .iter()
            .filter(|shared| shared.from == self.account)
            .map(|shared| {
                let answers = if shared.many_answers { "Stream" } else { "Singleton" };
                json!({"name": shared.subject, "subject": shared.subject, "type": "service", "response_type": answers})
            })
            .collect();

        let imports: Vec<Value> = SHARED
            .iter()
            .filter(|shared| shared.to == self.account)
            .map(|shared| {
                let from = self.accounts.get(&shared.from);
                json!({"name": shared.subject, "subject": shared.subject, "type": "service", "account": from})
            })
            .collect();

        json!({
            "type": "account", "version": VERSION, "limits": limits,
            "default_permissions": {"pub": {"deny": [">"]}, "sub": {"deny": [">"]}},
            "signing_keys": signing_keys, "exports": exports, "imports": imports, "revocations": self.revoked,
        })
    }
}

/// Rights of all users that one key makes.
fn template(rights: &SubjectRights) -> Value {
    let list = |allow: &[String], deny: &[String]| {
        let mut lists = Map::new();
        if !allow.is_empty() {
            lists.insert("allow".to_owned(), json!(allow));
        }
        if !deny.is_empty() {
            lists.insert("deny".to_owned(), json!(deny));
        }
        Value::from(lists)
    };

    let mut template = json!({
        "pub": list(&rights.publish, &rights.deny_publish), "sub": list(&rights.hear, &[]),
        "subs": -1, "data": -1, "payload": -1,
    });
    if rights.is_bearer {
        template["bearer_token"] = json!(true);
    }
    if let Some(answers) = rights.answers {
        let within = u64::try_from(answers.within.as_nanos()).unwrap_or(u64::MAX);
        template["resp"] = json!({"max": answers.most, "ttl": within});
    }
    template
}

/// Claims of a user's token.
#[derive(Debug, Clone)]
pub struct UserToken<'a> {
    /// Name of the user, which is part of its inboxes.
    pub name: &'a str,
    /// Role of the user.
    pub role: BusRole,
    /// Public half of the user's own key.
    pub public: &'a str,
    /// Public key of its account.
    pub account: &'a str,
    /// Channel, for an edge.
    pub channel: Option<&'a str>,
    /// Personas for which an agent answers; none stands for all.
    pub personas: &'a [String],
    /// Time from which the token is refused, in seconds since 1970.
    pub expires: Option<i64>,
}

impl UserToken<'_> {
    /// Returns the token as of `issued`, signed with the key of the user's role.
    ///
    /// # Errors
    /// Returns [`AuthKeyFault`] if the key cannot sign.
    pub fn sign(&self, key: &AuthKey, issued: i64) -> Result<String, AuthKeyFault> {
        let mut tags = vec![format!("{ROLE_TAG}{}", self.role.name())];
        tags.extend(self.channel.map(|channel| format!("{CHANNEL_TAG}{channel}")));
        // As they are written in subjects.
        tags.extend(
            self.personas
                .iter()
                .map(|persona| format!("{PERSONA_TAG}{}", token(persona))),
        );
        if self.role == BusRole::Agent && self.personas.is_empty() {
            tags.push(format!("{PERSONA_TAG}*"));
        }
        let nats = json!({
            "type": "user", "version": VERSION, "issuer_account": self.account, "pub": {}, "sub": {}, "tags": tags,
        });
        sign(key, (self.public, self.name), (issued, self.expires), nats)
    }
}

/// Claims of a user's token, as its holder reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserClaims {
    /// Name of the user.
    pub name: String,
    /// Public half of the user's key.
    pub public: String,
    /// Role of the user, if it is one that we know.
    pub role: Option<BusRole>,
    /// Time at which the token was made, in seconds since 1970.
    pub issued: i64,
    /// Time from which it is refused, in seconds since 1970.
    pub expires: Option<i64>,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    name: String,
    iat: i64,
    exp: Option<i64>,
    nats: NatsClaims,
}

#[derive(Deserialize)]
struct NatsClaims {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    revocations: BTreeMap<String, i64>,
}

fn decode(token: &str) -> Result<Claims, DecodeTokenError> {
    let middle = token.split('.').nth(1).ok_or(DecodeTokenError::Form)?;
    let bytes = URL_SAFE_NO_PAD.decode(middle).map_err(|_| DecodeTokenError::Form)?;
    serde_json::from_slice(&bytes).map_err(|error| DecodeTokenError::Claims(error.to_string()))
}

impl UserClaims {
    /// Reads the claims of a user's `token`. Whether the signature is right is the server's affair.
    ///
    /// # Errors
    /// Returns [`DecodeTokenError`].
    pub fn decode(token: &str) -> Result<Self, DecodeTokenError> {
        let claims = decode(token)?;
        if claims.nats.kind != "user" {
            return Err(DecodeTokenError::Kind {
                found: claims.nats.kind,
                expected: "user",
            });
        }

        let tags = claims.nats.tags.iter();
        let role = tags
            .filter_map(|tag| tag.strip_prefix(ROLE_TAG))
            .find_map(BusRole::parse);
        Ok(Self {
            name: claims.name,
            public: claims.sub,
            role,
            issued: claims.iat,
            expires: claims.exp,
        })
    }
}

/// Claims of an account's token, as the maker of the next one needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountClaims {
    /// Public key that names the account.
    pub public: String,
    /// Time at which the token was made, in seconds since 1970.
    pub issued: i64,
    /// Users whose tokens are refused if they were issued until then, in seconds since 1970.
    pub revoked: BTreeMap<String, i64>,
}

impl AccountClaims {
    /// Reads the claims of an account's `token` that the operator of the public key `operator` has signed.
    ///
    /// # Errors
    /// Returns [`DecodeTokenError`].
    pub fn decode(token: &str, operator: &str) -> Result<Self, DecodeTokenError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(DecodeTokenError::Form)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| DecodeTokenError::Form)?;
        if !AuthKey::has_signed(operator, signed.as_bytes(), &signature) {
            return Err(DecodeTokenError::Signature);
        }

        let claims = decode(token)?;
        if claims.nats.kind != "account" {
            return Err(DecodeTokenError::Kind {
                found: claims.nats.kind,
                expected: "account",
            });
        }

        Ok(Self {
            public: claims.sub,
            issued: claims.iat,
            revoked: claims.nats.revocations,
        })
    }
}

/// Why a token cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeTokenError {
    /// It does not consist of three parts in base64.
    #[error("the token is not of three parts in base64")]
    Form,
    /// Its claims are not as expected.
    #[error("the token's claims cannot be read: {0}")]
    Claims(String),
    /// It is signed by another operator, or not at all.
    #[error("the token is not signed with the operator's key")]
    Signature,
    /// It is a token of another type.
    #[error("the token is of type `{found}`, not of type `{expected}`")]
    Kind {
        /// Type of the token.
        found: String,
        /// Type that was expected.
        expected: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::super::key::KeyKind;
    use super::*;

    #[test]
    fn a_users_token_is_signed_by_its_role_and_read_back() {
        let (role_key, user) = (
            AuthKey::of_random(KeyKind::Account, [1; 32]).expect("a key"),
            AuthKey::of_random(KeyKind::User, [2; 32]).expect("a key"),
        );
        let (public, account) = (user.public(), role_key.public());
        let token = UserToken {
            name: "anna",
            role: BusRole::Operator,
            public: &public,
            account: &account,
            channel: None,
            personas: &[],
            expires: Some(2_000),
        };
        let text = token.sign(&role_key, 1_000).expect("signed");
        let read = UserClaims::decode(&text).expect("claims");
        let wanted = UserClaims {
            name: "anna".to_owned(),
            public,
            role: Some(BusRole::Operator),
            issued: 1_000,
            expires: Some(2_000),
        };
        assert_eq!(read, wanted);

        let (signed, signature) = text.rsplit_once('.').expect("three parts");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64");
        assert!(AuthKey::has_signed(&role_key.public(), signed.as_bytes(), &signature));
    }

    #[test]
    fn what_is_no_users_token_is_told() {
        let key = AuthKey::of_random(KeyKind::Operator, [3; 32]).expect("a key");
        let operator = operator_token(&key, "A", 5).expect("signed");
        assert_eq!(
            UserClaims::decode(&operator),
            Err(DecodeTokenError::Kind {
                found: "operator".to_owned(),
                expected: "user"
            })
        );
        assert_eq!(UserClaims::decode("a.b"), Err(DecodeTokenError::Form));
    }

    #[test]
    fn an_accounts_token_is_read_only_if_the_operator_has_signed_it() {
        let operator = AuthKey::of_random(KeyKind::Operator, [3; 32]).expect("a key");
        let other = AuthKey::of_random(KeyKind::Operator, [4; 32]).expect("a key");
        let accounts = [(BusAccount::Edge, "AEDGE".to_owned())].into();
        let revoked = BTreeMap::from([("U1".to_owned(), 7)]);
        let token = AccountToken {
            account: BusAccount::Edge,
            accounts: &accounts,
            keys: &[],
            revoked: &revoked,
        };
        let text = token.sign(&operator, 9).expect("signed");

        let read = AccountClaims::decode(&text, &operator.public());
        let public = "AEDGE".to_owned();
        assert_eq!(
            read,
            Ok(AccountClaims {
                public,
                issued: 9,
                revoked: revoked.clone()
            })
        );
        let foreign = AccountClaims::decode(&text, &other.public());
        assert_eq!(foreign, Err(DecodeTokenError::Signature));
    }

    #[test]
    fn an_agent_hears_its_personas_and_without_any_all() {
        let key = AuthKey::of_random(KeyKind::Account, [1; 32]).expect("a key");
        let tags = |personas: &[String]| {
            let token = UserToken {
                name: "shop",
                role: BusRole::Agent,
                public: "U",
                account: "A",
                channel: None,
                personas,
                expires: None,
            };
            let text = token.sign(&key, 1).expect("signed");
            decode(&text).expect("claims").nats.tags
        };
        assert_eq!(
            tags(&["shop".to_owned(), "The till".to_owned()]),
            ["role:agent", "persona:shop", "persona:The=20till"]
        );
        assert_eq!(tags(&[]), ["role:agent", "persona:*"]);
    }
}
