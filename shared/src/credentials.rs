//! Keys and tokens of the users of the bus: a user's proof to the server, and its signers.
//!
//! A user's token names it, its role and its account, and is signed with the key of its role; the account's token, which
//! the operator signs, says what each such key may make. The server holds the accounts' tokens alone. Nothing outside
//! this module names `nkeys`. Source: `docs/adr/0029-accounts-are-the-walls.md`.

mod file;
mod key;
mod token;

pub use self::file::{CredentialsFault, UserCredentials};
pub use self::key::{AuthKey, AuthKeyFault, KeyKind};
pub use self::token::{AccountClaims, AccountToken, DecodeTokenError, RoleKey, UserClaims, UserToken, operator_token};
