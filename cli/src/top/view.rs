//! The board as a screen, and as lines. *Pure.*

use std::fmt::Write as _;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};

use super::model::{Board, Rate};
use crate::output::{Zone, escape_controls};

/// Height of a table's frame in lines: two borders and the header.
const FRAME_LINES: u16 = 3;

fn per_second(rate: &Rate) -> String {
    rate.per_second
        .map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

fn waiting(rate: &Rate) -> String {
    if rate.waits {
        rate.messages.to_string()
    } else {
        String::new()
    }
}

fn title(board: &Board, zone: &Zone) -> String {
    format!(
        "nexus top  {}  {} sessions at work, {} events to be evaluated",
        zone.clock(board.at),
        board.busy_sessions,
        board.events_behind
    )
}

/// Draws `board` on the whole screen.
pub fn draw(frame: &mut Frame<'_>, board: &Board, zone: &Zone) {
    let streams = u16::try_from(board.streams.len())
        .unwrap_or(u16::MAX)
        .saturating_add(FRAME_LINES);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(streams),
        Constraint::Min(FRAME_LINES),
        Constraint::Length(1),
    ]);

    let [head, rates, sessions, foot] = areas.areas(frame.area());
    frame.render_widget(Line::from(title(board, zone)).bold(), head);
    let rows = board.streams.iter().map(|rate| {
        let row = Row::new([
            rate.stream.to_owned(),
            per_second(rate),
            rate.messages.to_string(),
            waiting(rate),
        ]);

        let stands = rate.waits && rate.messages > 0;
        if stands { row.style(Style::new().yellow()) } else { row }
    });

    let columns = [
        Constraint::Length(14),
        Constraint::Length(10),
        Constraint::Length(14),
        Constraint::Min(8),
    ];

    let table = Table::new(rows, columns).header(Row::new(["stream", "per second", "messages", "waiting"]).bold());
    frame.render_widget(table.block(Block::bordered()), rates);
    let rows = board
        .sessions
        .iter()
        .map(|session| [session.session.clone(), session.queue(), session.doing(board.at)])
        // Names of conversations are strangers' text.
        .map(|cells| Row::new(cells.map(|cell| escape_controls(&cell))));

    let columns = [Constraint::Percentage(50), Constraint::Length(8), Constraint::Min(20)];
    let table = Table::new(rows, columns).header(Row::new(["session", "queued", "doing"]).bold());
    frame.render_widget(table.block(Block::bordered()), sessions);
    frame.render_widget(Line::from("q ends").dim(), foot);
}

/// Returns the board as lines of text.
#[must_use]
pub fn lines(board: &Board, zone: &Zone) -> String {
    let mut text = title(board, zone);
    for rate in &board.streams {
        let waits = if rate.waits { " waiting" } else { "" };
        let _ = write!(
            text,
            "\n  {:<12} {:>10}/s {:>10}{waits}",
            rate.stream,
            per_second(rate),
            rate.messages
        );
    }

    for session in &board.sessions {
        let (queue, doing) = (session.queue(), session.doing(board.at));
        let _ = write!(text, "\n  {} queued {queue}, {doing}", session.session);
    }

    text
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::model::tests::look;

    fn board() -> Board {
        Board::of(Some(&look(10_000, 100, 2)), &look(12_000, 150, 120))
    }

    fn screen(board: &Board, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, board, &Zone::utc())).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells
            .chunks(usize::from(width))
            .map(|row| row.concat().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_screen_shows_rates_what_waits_and_who_works() {
        let rows = screen(&board(), 80, 16);
        assert_eq!(
            rows[0],
            "nexus top  00:00:12.000  7 sessions at work, 3 events to be evaluated"
        );

        let line = |word: &str| rows.iter().find(|row| row.contains(word)).cloned().unwrap_or_default();
        let words = |row: String| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(line("EVENTS")), ["│EVENTS", "25.0", "75", "│"]);
        assert_eq!(words(line("DELIVERIES")), ["│DELIVERIES", "0.0", "4", "4", "│"]);
        assert!(
            line("default/b").contains("100+") && line("default/b").contains("runs, 2 s, 2 model calls"),
            "{rows:?}"
        );
        assert_eq!(rows.last().map(String::as_str), Some("q ends"));
    }

    #[test]
    fn a_strangers_name_does_not_steer_the_screen() {
        let mut board = board();
        board.sessions[0].session = "atlas/\u{202e}\u{1b}[2J".to_owned();
        let screen = screen(&board, 100, 20).join("\n");
        assert!(screen.contains("atlas/\\u{202e}\\u{1b}[2J"), "{screen}");
    }

    #[test]
    fn a_screen_that_is_too_small_is_no_fault() {
        assert_eq!(screen(&board(), 20, 3).len(), 3);
    }

    #[test]
    fn lines_say_the_same() {
        let board = Board::of(None, &look(12_000, 150, 1));
        let text = lines(&board, &Zone::utc());
        assert!(text.contains("EVENTS                -/s         75\n"), "{text}");
        assert!(
            text.contains("DELIVERIES            -/s          4 waiting\n"),
            "{text}"
        );
        assert!(text.ends_with("default/b queued 1, runs, 2 s, 2 model calls"), "{text}");
    }
}
