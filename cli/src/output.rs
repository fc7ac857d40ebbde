//! Output of all commands: one value per command, shown as table, JSON or ids, through one writer.

mod column;
mod escape;
mod layout;
mod table;
mod view;
mod writer;
mod zone;

pub use column::Column;
pub use escape::{brief_line, escape_controls, plain_lines};
pub use table::{Cell, Table};
pub use view::{LinePrinter, View, is_for_people, reader_zone};
pub use writer::{ReaderGone, check_written, complain_line, json_line, json_text, print, print_json, say_line};
pub use zone::Zone;
