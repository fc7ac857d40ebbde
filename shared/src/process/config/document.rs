//! Configuration file with the overrides of the environment.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::arguments::ServiceArguments;
use super::environment::ConfigEnvironment;
use super::fault::ConfigFault;

/// Names of the sections; any other section is a fault.
pub const SECTIONS: [&str; 12] = [
    "nats",
    "trust",
    "edges",
    "telemetry",
    "runtime",
    "files",
    "llm",
    "adapter",
    "hooks",
    "broker",
    "delivery",
    "scheduler",
];

/// Path of the configuration file if none is given.
const DEFAULT_PATH: &str = "nexus.toml";

/// A configuration as written: the file, and the overrides of the environment.
#[derive(Debug, Clone, Default)]
pub struct ConfigDocument {
    pub(super) source: String,
    pub(super) root: Table,
    pub(super) overrides: Vec<ConfigOverride>,
    faults: Vec<ConfigFault>,
}

/// A key that an environment variable sets.
#[derive(Debug, Clone)]
pub(super) struct ConfigOverride {
    /// Name of the environment variable.
    pub(super) variable: String,
    /// Path of the key; the section comes first.
    pub(super) path: Vec<String>,
    /// Possible meanings of the text, likeliest first: a TOML value, the text itself, a list of texts.
    pub(super) readings: Vec<Value>,
}

impl ConfigDocument {
    /// Reads the file that `arguments` names, else the one that `environment` names, else `./nexus.toml` if it exists.
    ///
    /// Errors of reading are in [`ConfigDocument::faults`]; the rest of the configuration has its defaults then.
    #[must_use]
    pub fn read(arguments: &ServiceArguments, environment: &ConfigEnvironment) -> Self {
        let named = arguments.config.clone().or_else(|| environment.config_path());
        let (path, required) = named.map_or_else(|| (PathBuf::from(DEFAULT_PATH), false), |path| (path, true));
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text, environment),
            // The file at the default path need not exist.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                Self::parse(&path, "", environment)
            }
            Err(error) => {
                let mut document = Self::parse(&path, "", environment);
                let problem = format!("cannot be read: {error}");
                // Placed first, because it explains the faults of missing keys.
                document.faults.insert(
                    0,
                    ConfigFault {
                        source: document.source.clone(),
                        key: String::new(),
                        problem,
                    },
                );

                document
            }
        }
    }

    /// Parses the configuration in `text`, reported as from `path`, and applies the overrides of `environment`.
    #[must_use]
    pub fn parse(path: &Path, text: &str, environment: &ConfigEnvironment) -> Self {
        let mut document = Self {
            source: path.display().to_string(),
            ..Self::default()
        };
        match text.parse::<Table>() {
            Ok(root) => document.root = root,
            Err(error) => {
                document.add_fault(String::new(), describe_syntax(text, &error));
            }
        }

        // Variables are laid over sections, so anything in the file that is no section has to be gone first.
        document.check_sections();

        for (variable, path, value) in environment.overrides() {
            document.lay_over(variable, path, value);
        }

        document
    }

    /// Returns the faults of the file as a whole: unreadable, invalid syntax, unknown sections.
    #[must_use]
    pub fn faults(&self) -> &[ConfigFault] {
        &self.faults
    }

    /// Returns whether the file or a variable sets anything in section `name`.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        self.root.contains_key(name)
    }

    /// Returns the keys that the file and the variables set in section `name`, without defaults; an empty table if
    /// there are none.
    #[must_use]
    pub fn value(&self, name: &str) -> Table {
        self.root
            .get(name)
            .and_then(Value::as_table)
            .cloned()
            .unwrap_or_default()
    }

    /// Path of the file, as given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns every file that the configuration refers to as `file:PATH`, in any section.
    #[must_use]
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut values: Vec<&Value> = self.root.iter().map(|(_, value)| value).collect();
        while let Some(value) = values.pop() {
            if let Some(path) = value.as_str().and_then(|text| text.strip_prefix("file:")) {
                files.push(PathBuf::from(path));
            } else if let Some(table) = value.as_table() {
                values.extend(table.iter().map(|(_, value)| value));
            } else if let Some(list) = value.as_array() {
                values.extend(list);
            }
        }

        files
    }

    fn check_sections(&mut self) {
        let expected = SECTIONS.join(", ");
        let mut faults = Vec::new();
        self.root.retain(|name, value| {
            let problem = if !SECTIONS.contains(&name) {
                format!("unknown section: expected one of {expected}")
            } else if !value.is_table() {
                format!("expected a section, [{name}]")
            } else {
                return true;
            };

            faults.push((name.to_owned(), problem));
            false
        });

        for (name, problem) in faults {
            self.add_fault(name, problem);
        }
    }

    fn lay_over(&mut self, variable: &str, path: Vec<String>, text: &str) {
        let known = path.first().is_some_and(|section| SECTIONS.contains(&section.as_str()));
        if !known || path.len() < 2 || path.iter().any(String::is_empty) {
            let problem = format!("expected NEXUS__SECTION__KEY with a section of {}", SECTIONS.join(", "));
            self.faults.push(ConfigFault {
                source: variable.to_owned(),
                key: String::new(),
                problem,
            });

            return;
        }

        let readings = value_readings(text);
        set_path(&mut self.root, &path, readings[0].clone());
        self.overrides.push(ConfigOverride {
            variable: variable.to_owned(),
            path,
            readings,
        });
    }

    fn add_fault(&mut self, key: String, problem: String) {
        self.faults.push(ConfigFault {
            source: self.source.clone(),
            key,
            problem,
        });
    }
}

/// Returns the place and the cause of a syntax error in `text`; a key that is written twice is named.
fn describe_syntax(text: &str, error: &toml::de::Error) -> String {
    let span = error.span().unwrap_or_default();
    let before = text.get(..span.start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;

    let message = error.message();
    let place = text.get(span).unwrap_or_default();
    // The parser's message does not name the key; its place is the key.
    if message.starts_with("duplicate key") && !place.is_empty() && !place.contains('\n') {
        return format!("line {line}: duplicate key `{place}`");
    }
    format!("line {line}: {message}")
}

/// Returns the possible meanings of a variable's text; never empty.
fn value_readings(text: &str) -> Vec<Value> {
    let mut readings = Vec::new();
    let line = format!("value = {text}");
    if let Ok(mut table) = line.parse::<Table>()
        && table.len() == 1
    {
        readings.extend(table.remove("value"));
    }

    readings.push(Value::String(text.to_owned()));
    let parts = text.split(',').map(|part| Value::String(part.trim().to_owned()));
    readings.push(Value::Array(parts.filter(|part| part.as_str() != Some("")).collect()));

    readings
}

/// Sets the value at `path`, creating the tables on the way; a value on the way that is no table is replaced.
pub(super) fn set_path(table: &mut Table, path: &[String], value: Value) {
    let Some((last, way)) = path.split_last() else { return };
    let mut table = table;
    for step in way {
        let next = table.entry(step.clone()).or_insert_with(|| Value::Table(Table::new()));
        if !next.is_table() {
            *next = Value::Table(Table::new());
        }
        let Value::Table(inner) = next else { return };
        table = inner;
    }

    table.insert(last.clone(), value);
}
