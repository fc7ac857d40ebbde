//! Tests of the read model through its public interface.

mod consequences;
mod contract;
mod equal;
mod file;
mod follow;
mod frozen;
mod health;
mod lent;
mod people;
mod samples;
mod search;
mod sessions;
mod speed;
mod trace;

use rusqlite::Connection;

use super::{AppliedRecord, Projection, schema};

/// A projection in a directory of its own, which lasts as long as this.
struct Case {
    projection: Projection,
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let projection = Projection::open(&directory.path().join("read.db")).unwrap();
        Self { projection, directory }
    }

    async fn with(batch: Vec<AppliedRecord>) -> Self {
        let case = Self::new();
        case.projection.apply(batch).await.unwrap();
        case
    }

    /// Opens the file as a script does.
    fn reader(&self) -> Connection {
        schema::open_reader(self.projection.path()).unwrap()
    }

    /// Returns the one value that `sql` selects.
    fn value<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.reader().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Returns every row of every table that is filled, as text.
    fn dump(&self) -> Vec<String> {
        let connection = self.reader();
        let mut names = connection
            .prepare(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'events_fts%' ORDER BY name",
            )
            .unwrap();

        let names: Vec<String> = names
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let mut rows = Vec::new();
        for name in names {
            let mut statement = connection.prepare(&format!("SELECT * FROM {name}")).unwrap();
            let columns = statement.column_count();

            let mut answer = statement.query([]).unwrap();
            while let Some(row) = answer.next().unwrap() {
                let values: Vec<String> = (0..columns)
                    .map(|column| format!("{:?}", row.get::<_, rusqlite::types::Value>(column).unwrap()))
                    .collect();
                rows.push(format!("{name}: {}", values.join(" | ")));
            }
        }

        rows.sort();
        rows
    }
}
