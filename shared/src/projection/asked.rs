//! What a hook script asks the read model, as plain values, and a session that answers them.
//!
//! A query names everything that its answer depends on, and its answer is a page, so that whoever holds a copy of the read
//! model may give it. Here it is answered from this machine's file: by a connection that only reads, statement by
//! statement, within one transaction an evaluation. Bounds: a second for a query and for a transaction, 4 MiB for a page and
//! for any value.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, Statement};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::schema;
use crate::clock::SharedClock;

/// Most bytes of one page, as JSON, and of one value inside SQLite.
pub const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How long one query may take, and how long one transaction is kept.
pub const MAX_QUERY: Duration = Duration::from_secs(1);

/// Whole numbers beyond this are no JavaScript numbers.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// What a statement may begin with. Everything else changes something, or reaches another file.
const READING: [&str; 5] = ["SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"];

/// Pragmas that tell and change nothing.
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

/// One query: the first rows of its answer, or those behind what is had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelQuery {
    /// The copy that answers has taken in `EVENTS` up to here; 0 = whatever it has.
    #[serde(default)]
    pub sequence: u64,
    /// One statement that only reads.
    pub sql: String,
    /// Values by place. Beyond JSON's, `{"i": "…"}` is a whole number and `{"b": "…"}` bytes in base64.
    #[serde(default)]
    pub values: Vec<Value>,
    /// Values by name, with or without its `$`, `:` or `@`.
    #[serde(default)]
    pub named: Map<String, Value>,
    /// Rows that are had.
    #[serde(default)]
    pub skip: u64,
    /// Most rows that are wanted; none = as many as a page holds.
    #[serde(default)]
    pub most: Option<u64>,
    /// Whether every whole number is to be told from one that is not.
    #[serde(default)]
    pub exact: bool,
}

/// Rows, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelPage {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// By row and column.
    pub rows: Vec<Vec<Cell>>,
    /// Whether there are rows behind these that did not fit.
    pub more: bool,
    /// About how many bytes the rows are as JSON.
    #[serde(skip)]
    pub bytes: usize,
}

/// One value. As JSON, `{"i": "…"}` is a whole number that JSON's numbers do not hold or that was to be told apart,
/// `{"r": "…"}` an infinite one, `{"b": "…"}` bytes in base64.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// A whole number.
    Integer(i64),
    /// The same, to be told apart.
    Exact(i64),
    /// Any other number.
    Real(f64),
    /// Text; what is no UTF-8 is replaced.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelQueryError {
    /// The statement does not merely read.
    #[error("the read model can only be read, by one SELECT a time: {0}")]
    Refused(String),
    /// SQLite does not take it, or the values do not fit it.
    #[error("{0}")]
    Failed(String),
    /// The query, or the transaction in which its further pages are read, took too long.
    #[error("the query took more than {} ms", MAX_QUERY.as_millis())]
    TimedOut,
    /// A row does not fit a page, or the evaluation has read too much.
    #[error("the answer is too large: {0}")]
    TooLarge(&'static str),
    /// The read model cannot be read now.
    #[error("the read model is not available: {0}")]
    Unavailable(String),
}

impl ModelQueryError {
    /// For scripts.
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

/// Ends the query that a session is at, from elsewhere.
#[derive(Default)]
pub struct Stop(Mutex<Option<InterruptHandle>>);

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").finish_non_exhaustive()
    }
}

impl Stop {
    /// Ends what runs now; what begins later is not touched.
    pub fn interrupt(&self) {
        if let Some(handle) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.interrupt();
        }
    }
}

/// One reader of the file, for evaluations one after the other. Blocking.
#[derive(Debug)]
pub struct ModelSession {
    path: PathBuf,
    clock: SharedClock,
    open: Option<Open>,
    stop: Arc<Stop>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Which file it is, by device and number: it may have been made anew.
    file: (u64, u64),
    /// The evaluation that its transaction is of, and when that began.
    transaction: Option<(u32, Instant)>,
}

impl ModelSession {
    /// Of the file at `path`, which is opened when something is asked.
    #[must_use]
    pub fn new(path: PathBuf, clock: SharedClock) -> Self {
        Self {
            path,
            clock,
            open: None,
            stop: Arc::default(),
        }
    }

    /// What ends its queries.
    #[must_use]
    pub fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// The evaluation whose transaction is open, and how old that is.
    #[must_use]
    pub fn transaction(&self) -> Option<(u32, Duration)> {
        let (evaluation, began) = self.open.as_ref()?.transaction?;
        Some((evaluation, self.clock.monotonic().saturating_duration_since(began)))
    }

    /// Ends the transaction, if there is one.
    pub fn end(&mut self) {
        if let Some(open) = &mut self.open
            && open.transaction.take().is_some()
            && open.connection.execute_batch("ROLLBACK").is_err()
        {
            self.open = None;
        }
    }

    /// Answers `query` in the transaction of `evaluation`, which begins anew where it is another one's or too old.
    ///
    /// # Errors
    /// [`ModelQueryError`].
    pub fn ask(&mut self, evaluation: u32, query: &ModelQuery, until: Instant) -> Result<ModelPage, ModelQueryError> {
        check(&query.sql)?;

        self.begin(evaluation, query)?;
        let Some(open) = &self.open else {
            return Err(ModelQueryError::Unavailable("it is closed".to_owned()));
        };

        let mut statement = open.connection.prepare_cached(&query.sql)?;
        if !statement.readonly() {
            return Err(ModelQueryError::Refused("this statement writes".to_owned()));
        }

        bind(&mut statement, query)?;
        rows(&mut statement, query, || self.clock.monotonic() >= until)
    }

    fn begin(&mut self, evaluation: u32, query: &ModelQuery) -> Result<(), ModelQueryError> {
        let now = self.clock.monotonic();
        let transaction = self.open.as_ref().and_then(|open| open.transaction);
        let goes_on =
            transaction.is_some_and(|(of, began)| of == evaluation && now.saturating_duration_since(began) < MAX_QUERY);
        if goes_on {
            return Ok(());
        }

        self.end();

        if query.skip > 0 {
            // Rows of another state would be passed over.
            return Err(ModelQueryError::TimedOut);
        }

        let metadata = std::fs::metadata(&self.path);
        let metadata = metadata.map_err(|error| ModelQueryError::Unavailable(error.to_string()))?;
        let file = (metadata.dev(), metadata.ino());
        if self.open.as_ref().is_none_or(|open| open.file != file) {
            let connection = schema::open_reader(&self.path)?;
            limit(&connection)?;
            let handle = connection.get_interrupt_handle();
            *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
            self.open = Some(Open {
                connection,
                file,
                transaction: None,
            });
        }

        if let Some(open) = &mut self.open {
            open.connection.execute_batch("BEGIN")?;
            open.transaction = Some((evaluation, now));

            let has: i64 = open
                .connection
                .prepare_cached("SELECT coalesce(max(sequence), 0) FROM nexus_positions WHERE stream = 'EVENTS'")?
                .query_row([], |row| row.get(0))?;
            if has.cast_unsigned() < query.sequence {
                return Err(ModelQueryError::Unavailable("it has not taken in the event".to_owned()));
            }
        }

        Ok(())
    }
}

/// Bounds what SQLite holds of one value, and keeps the connection from other files.
fn limit(connection: &Connection) -> Result<(), ModelQueryError> {
    let most = i32::try_from(MAX_PAGE_BYTES).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, most)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    Ok(())
}

/// Whether `sql` begins as something that reads.
fn check(sql: &str) -> Result<(), ModelQueryError> {
    let rest = without_comments(sql);
    let (first, rest) = word(rest);

    let refused = |what: &str| Err(ModelQueryError::Refused(format!("{what} is not allowed")));
    if !READING.iter().any(|reading| first.eq_ignore_ascii_case(reading)) {
        return refused(if first.is_empty() { "this" } else { first });
    }

    if !first.eq_ignore_ascii_case("PRAGMA") {
        return Ok(());
    }

    let (mut name, mut rest) = word(without_comments(rest));
    if let Some(behind) = rest.strip_prefix('.') {
        (name, rest) = word(behind);
    }

    if !TELLING.iter().any(|telling| name.eq_ignore_ascii_case(telling)) || rest.contains('=') {
        return refused(&format!("PRAGMA {name}"));
    }

    Ok(())
}

fn word(text: &str) -> (&str, &str) {
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

fn bind(statement: &mut Statement<'_>, query: &ModelQuery) -> Result<(), ModelQueryError> {
    let expected = statement.parameter_count();
    if !query.values.is_empty() && query.named.is_empty() && query.values.len() != expected {
        let received = query.values.len();
        let message = format!("SQLite query expected {expected} values, received {received}");
        return Err(ModelQueryError::Failed(message));
    }

    for (at, value) in query.values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, sql(value)?)?;
    }

    for (name, value) in &query.named {
        let spellings = ["", "$", ":", "@"].map(|prefix| format!("{prefix}{name}"));
        for spelling in spellings {
            if let Some(index) = statement.parameter_index(&spelling)? {
                statement.raw_bind_parameter(index, sql(value)?)?;
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

/// What `value` is to SQLite.
fn sql(value: &Value) -> Result<Sql, ModelQueryError> {
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

fn rows(
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
        // Between two statements nothing is there to be interrupted.
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
            let cell = cell(row.get_ref(column)?, query.exact);
            bytes += cell.bytes();
            if bytes > MAX_PAGE_BYTES {
                return Err(ModelQueryError::TooLarge("a row of more than 4 MiB"));
            }
            cells.push(cell);
        }

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

fn cell(value: ValueRef<'_>, exact: bool) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(whole) if exact => Cell::Exact(whole),
        ValueRef::Integer(whole) => Cell::Integer(whole),
        ValueRef::Real(real) => Cell::Real(real),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec()),
    }
}

impl Cell {
    /// About how many bytes it is as JSON, and no fewer by much.
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

impl Serialize for Cell {
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
