//! Queries of hook scripts on the read model, as plain values, and a session that runs them.
//!
//! A query contains everything that its result depends on, and its result is a page, so that any holder of a copy of
//! the read model can run it. This session runs it on this machine's file, read-only, in one transaction per
//! evaluation. Limits: a second for a query and for a transaction, 4 MiB for a page and for any value.

mod session;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{ErrorCode, Statement};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

pub use session::{MAX_OPEN, ModelSession, QueryStop};

/// Maximum size of one page, as JSON, and of one value inside SQLite, in bytes.
pub const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Longest duration of one query, and of one transaction.
pub const MAX_QUERY: Duration = Duration::from_secs(1);

/// Largest whole number that a JavaScript number can hold.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Keywords that a statement may begin with. All others change something, or reach another file.
const READING: [&str; 5] = ["SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"];

/// Pragmas that only read.
const TELLING: [&str; 18] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
    "collation_list",
    "function_list",
    "module_list",
    "pragma_list",
    "compile_options",
    "user_version",
    "schema_version",
    "page_count",
    "page_size",
    "freelist_count",
    "encoding",
];

/// One query: the first rows of its result, or those after `skip` rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelQuery {
    /// Sequence of `EVENTS` that the file must have reached; 0 for no requirement.
    #[serde(default)]
    pub sequence: u64,
    /// One statement that only reads.
    pub sql: String,
    /// Values by position. Beyond JSON's, `{"i": "…"}` is a whole number and `{"b": "…"}` bytes in base64.
    #[serde(default)]
    pub values: Vec<Value>,
    /// Values by name, with or without the `$`, `:` or `@`.
    #[serde(default)]
    pub named: Map<String, Value>,
    /// Number of rows to skip, which the caller has already.
    #[serde(default)]
    pub skip: u64,
    /// Maximum number of rows; `None` for as many as a page holds.
    #[serde(default)]
    pub most: Option<u64>,
    /// Whether whole numbers are marked, so that the caller can distinguish them from other numbers.
    #[serde(default)]
    pub exact: bool,
}

/// Rows of a result, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelPage {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Values by row and column.
    pub rows: Vec<Vec<QueryCell>>,
    /// Whether there are more rows that did not fit.
    pub more: bool,
    /// Approximate size of the rows as JSON, in bytes.
    #[serde(skip)]
    pub bytes: usize,
}

/// One value. As JSON, `{"i": "…"}` is a whole number that JSON's numbers do not hold or that was to be marked, `{"r":
/// "…"}` an infinite number, `{"b": "…"}` bytes in base64.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryCell {
    /// SQL's `NULL`: no value.
    Null,
    /// A whole number, of 64 bits.
    Integer(i64),
    /// A whole number that is marked in JSON.
    Exact(i64),
    /// A number that is not whole.
    Real(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Bytes, in base64 as JSON.
    Blob(Vec<u8>),
}

/// Reason why there is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelQueryError {
    /// The statement does more than read.
    #[error("only a single SELECT statement is allowed on the read model: {0}")]
    Refused(String),
    /// SQLite rejects the statement, or the values do not fit it.
    #[error("{0}")]
    Failed(String),
    /// The query, or the transaction of its further pages, took too long.
    #[error("the query took longer than {} ms", MAX_QUERY.as_millis())]
    TimedOut,
    /// A row does not fit a page, or the evaluation has read too much.
    #[error("the answer is too large: {0}")]
    TooLarge(&'static str),
    /// The read model cannot be read now.
    #[error("the read model is not available: {0}")]
    Unavailable(String),
}

impl ModelQueryError {
    /// Error code for scripts, in SQLite's names.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused(_) => "SQLITE_READONLY",
            Self::Failed(_) => "SQLITE_ERROR",
            Self::TimedOut => "SQLITE_INTERRUPT",
            Self::TooLarge(_) => "SQLITE_TOOBIG",
            Self::Unavailable(_) => "SQLITE_CANTOPEN",
        }
    }
}

impl From<rusqlite::Error> for ModelQueryError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Self::TimedOut,
            Some(ErrorCode::TooBig) => Self::TooLarge("a value of more than 4 MiB"),
            Some(ErrorCode::CannotOpen) => Self::Unavailable(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Fails unless `sql` begins as a statement that reads.
fn check(sql: &str) -> Result<(), ModelQueryError> {
    let rest = without_comments(sql);
    let (first, rest) = split_word(rest);

    let refused = |what: &str| Err(ModelQueryError::Refused(format!("{what} is not allowed")));
    if !READING.iter().any(|reading| first.eq_ignore_ascii_case(reading)) {
        return refused(if first.is_empty() { "this" } else { first });
    }

    if !first.eq_ignore_ascii_case("PRAGMA") {
        return Ok(());
    }

    // A pragma may be addressed to one database, as in `PRAGMA main.table_info`.
    let (mut name, mut rest) = split_word(without_comments(rest));
    if let Some(behind) = rest.strip_prefix('.') {
        (name, rest) = split_word(behind);
    }

    // With `=` a pragma writes.
    if !TELLING.iter().any(|telling| name.eq_ignore_ascii_case(telling)) || rest.contains('=') {
        return refused(&format!("PRAGMA {name}"));
    }

    Ok(())
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    text.split_at(end.unwrap_or(text.len()))
}

fn without_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();

        if let Some(comment) = text.strip_prefix("--") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(comment) = text.strip_prefix("/*") {
            text = comment.split_once("*/").map_or("", |(_, rest)| rest);
        } else {
            return text;
        }
    }
}

fn bind_parameters(statement: &mut Statement<'_>, query: &ModelQuery) -> Result<(), ModelQueryError> {
    // As `bun:sqlite` does, so that a script that worked on the file itself sees the same errors.
    let expected = statement.parameter_count();
    if !query.values.is_empty() && query.named.is_empty() && query.values.len() != expected {
        let received = query.values.len();
        let message = format!("SQLite query expected {expected} values, received {received}");
        return Err(ModelQueryError::Failed(message));
    }

    for (at, value) in query.values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, sql_value(value)?)?;
    }

    // A script may write the name with or without its prefix.
    for (name, value) in &query.named {
        let spellings = ["", "$", ":", "@"].map(|prefix| format!("{prefix}{name}"));
        for spelling in spellings {
            if let Some(index) = statement.parameter_index(&spelling)? {
                statement.raw_bind_parameter(index, sql_value(value)?)?;
            }
        }
    }

    if !query.named.is_empty() {
        let is_given = |name: &str| query.named.contains_key(name) || query.named.contains_key(&name[1..]);
        let missing = (1..=expected).find_map(|at| statement.parameter_name(at).filter(|name| !is_given(name)));
        if let Some(missing) = missing {
            return Err(ModelQueryError::Failed(format!(
                "Missing parameter \"{}\"",
                &missing[1..]
            )));
        }
    }

    Ok(())
}

/// Converts `value` to a value of SQLite.
fn sql_value(value: &Value) -> Result<Sql, ModelQueryError> {
    let bad = || ModelQueryError::Failed(format!("{value} cannot be bound"));
    Ok(match value {
        Value::Null => Sql::Null,
        Value::Bool(value) => Sql::Integer(i64::from(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Sql::Integer(whole),
            None => Sql::Real(number.as_f64().ok_or_else(bad)?),
        },
        Value::String(text) => Sql::Text(text.clone()),
        Value::Object(special) => match (special.get("i"), special.get("b")) {
            (Some(Value::String(whole)), None) => Sql::Integer(whole.parse().map_err(|_| bad())?),
            (None, Some(Value::String(bytes))) => Sql::Blob(STANDARD.decode(bytes).map_err(|_| bad())?),
            (_, _) => return Err(bad()),
        },
        Value::Array(_) => return Err(bad()),
    })
}

fn read_rows(
    statement: &mut Statement<'_>,
    query: &ModelQuery,
    is_over: impl Fn() -> bool,
) -> Result<ModelPage, ModelQueryError> {
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut page = ModelPage {
        bytes: columns.iter().map(String::len).sum(),
        columns,
        rows: Vec::new(),
        more: false,
    };

    if query.most == Some(0) {
        return Ok(page);
    }

    let mut rows = statement.raw_query();
    let mut at = 0;
    while let Some(row) = rows.next()? {
        // An interrupt between two statements has no effect, so the time is checked here as well.
        if at % 256 == 0 && is_over() {
            return Err(ModelQueryError::TimedOut);
        }

        at += 1;

        if at <= query.skip {
            continue;
        }

        let mut bytes = 2;
        let mut cells = Vec::with_capacity(page.columns.len());
        for column in 0..page.columns.len() {
            let cell = to_cell(row.get_ref(column)?, query.exact);
            bytes += cell.bytes();
            if bytes > MAX_PAGE_BYTES {
                return Err(ModelQueryError::TooLarge("a row of more than 4 MiB"));
            }
            cells.push(cell);
        }

        // A page always has at least one row, or the reader would never advance.
        if page.bytes + bytes > MAX_PAGE_BYTES && !page.rows.is_empty() {
            page.more = true;
            return Ok(page);
        }

        page.bytes += bytes;
        page.rows.push(cells);

        if query.most.is_some_and(|most| page.rows.len() as u64 >= most) {
            return Ok(page);
        }
    }

    Ok(page)
}

fn to_cell(value: ValueRef<'_>, exact: bool) -> QueryCell {
    match value {
        ValueRef::Null => QueryCell::Null,
        ValueRef::Integer(whole) if exact => QueryCell::Exact(whole),
        ValueRef::Integer(whole) => QueryCell::Integer(whole),
        ValueRef::Real(real) => QueryCell::Real(real),
        ValueRef::Text(text) => QueryCell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => QueryCell::Blob(bytes.to_vec()),
    }
}

impl QueryCell {
    /// Returns the approximate size as JSON in bytes, at most slightly too low.
    fn bytes(&self) -> usize {
        match self {
            Self::Null => 5,
            Self::Integer(_) | Self::Exact(_) | Self::Real(_) => 28,
            Self::Text(text) => {
                let escaped = |byte: u8| match byte {
                    0..=0x1F => 6,
                    b'"' | b'\\' => 2,
                    _ => 1,
                };
                text.bytes().map(escaped).sum::<usize>() + 3
            }
            Self::Blob(bytes) => bytes.len() / 3 * 4 + 16,
        }
    }
}

impl Serialize for QueryCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let special = |serializer: S, key: &str, value: &str| {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry(key, value)?;
            map.end()
        };

        match self {
            Self::Null => serializer.serialize_none(),
            Self::Integer(whole) if whole.unsigned_abs() <= MAX_SAFE_INTEGER => serializer.serialize_i64(*whole),
            Self::Integer(whole) | Self::Exact(whole) => special(serializer, "i", &whole.to_string()),
            Self::Real(real) if real.is_finite() => serializer.serialize_f64(*real),
            Self::Real(real) => special(serializer, "r", if *real > 0.0 { "Infinity" } else { "-Infinity" }),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Blob(bytes) => special(serializer, "b", &STANDARD.encode(bytes)),
        }
    }
}
