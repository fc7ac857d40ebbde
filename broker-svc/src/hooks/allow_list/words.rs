//! Reads one command line as its words, or returns why it is more than one plain command. *Pure.*
//!
//! No shell reads a command again: the words that are matched against the list are the words that are executed.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum length of a command line, bytes.
const MAX_COMMAND_BYTES: usize = 16 * 1_024;

/// Words that have a meaning for a shell in place of a command's name.
const RESERVED: [&str; 33] = [
    "!", "[[", "]]", "alias", "builtin", "case", "command", "coproc", "do", "done", "elif", "else", "esac", "eval",
    "exec", "fi", "for", "function", "if", "in", "select", "set", "shopt", "source", "then", "time", "trap", "unalias",
    "until", "while", ".", "enable", "export",
];

/// Reason for which a command is not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandRejection {
    /// The command is empty, or consists of redirects only.
    #[error("there is no command")]
    Empty,
    /// The command line is too long.
    #[error("the command exceeds {MAX_COMMAND_BYTES} bytes")]
    TooLong,
    /// A control operator: `|`, `||`, `&&`, `;`, `&`.
    #[error("`{0}` combines several commands; put them into a script and list the script")]
    Operator(&'static str),
    /// A line break outside of quotes, or one that is escaped.
    #[error("line break outside of quotes")]
    LineBreak,
    /// A control character, by its code point.
    #[error("control character U+{0:04X}")]
    Control(u32),
    /// A substitution: `$( )`, backticks, `<( )`, `>( )`.
    #[error("command substitution is not allowed")]
    Substitution,
    /// An expansion: `$name`, `${ }`, `$'…'`, `~user`; or a variable whose value here is no absolute path.
    #[error("only $CLAUDE_PROJECT_DIR, ${{CLAUDE_PROJECT_DIR}}, $HOME and a leading ~ are expanded")]
    Expansion,
    /// A subshell in parentheses: `( )`.
    #[error("subshells are not allowed")]
    Subshell,
    /// A brace expansion: `{a,b}`.
    #[error("brace outside of quotes")]
    Brace,
    /// A file name pattern that could become an option, or a program.
    #[error("file name pattern as the program or in an option")]
    Pattern,
    /// A file name pattern that matches too many files, or names that are not UTF-8.
    #[error("the file name pattern `{0}` matches more than {MAX_MATCHES} names, or a name that is not UTF-8")]
    Matches(String),
    /// The working directory does not exist any more.
    #[error("failed to read the working directory")]
    Nowhere,
    /// A comment that begins with `#`.
    #[error("comments are not allowed")]
    Comment,
    /// A redirect to a file.
    #[error("only the redirects `>/dev/null`, `2>/dev/null` and `2>&1` are allowed")]
    Redirect,
    /// A word that follows a redirect.
    #[error("redirects must be at the end")]
    Behind,
    /// A quote that is not closed.
    #[error("unbalanced quotes")]
    Quotes,
    /// A variable assignment before the command: `NAME=value command`.
    #[error("variable assignments before the command are not allowed")]
    Assignment,
    /// A reserved word of the shell in place of the command.
    #[error("`{0}` is a shell keyword or builtin")]
    Reserved(String),
    /// No entry takes the whole command.
    #[error("no entry of the allow-list matches the command")]
    NoEntry,
    /// The program writes a file or runs another with this option, and only a wildcard takes it.
    #[error("option `{0}` can write files or run programs; the entry must name it")]
    Option(String),
}

/// Maximum number of names that one file name pattern may match.
pub(super) const MAX_MATCHES: usize = 1_000;

/// One part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WordPiece {
    /// This literal character.
    Is(char),
    /// `*` of a file name pattern.
    Any,
    /// `?` of a file name pattern.
    One,
    /// `[…]` of a file name pattern, with its brackets.
    Class(String),
    /// A `[` that is never closed: literal here, and perhaps a pattern in another shell.
    Bracket,
    /// The project's directory, which is the broker's working directory.
    Project,
    /// The user's home directory.
    Home,
}

/// Destination of a command's standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StderrTarget {
    /// Standard error is captured by itself.
    #[default]
    Apart,
    /// Standard error goes to the destination of standard output.
    WithOutput,
    /// Standard error is discarded.
    Nowhere,
}

/// The redirects of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandRedirects {
    /// Whether standard output is discarded.
    pub silent: bool,
    /// Destination of standard error.
    pub errors: StderrTarget,
}

/// One plain command, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedCommand {
    pub words: Vec<Vec<WordPiece>>,
    pub redirects: CommandRedirects,
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    words: Vec<Vec<WordPiece>>,
    word: Option<Vec<WordPiece>>,
    /// The current word, if it is only digits without quotes: the number of a descriptor if a redirect follows.
    digits: Option<String>,
    redirects: CommandRedirects,
    /// Whether a redirect was read.
    redirected: bool,
    /// Whether a word follows a redirect.
    behind: bool,
}

/// Reads `command` as one plain command.
///
/// # Errors
/// Returns [`CommandRejection`] with the part that makes it more than one command, or that cannot be checked.
pub(super) fn parse_command(command: &str) -> Result<ParsedCommand, CommandRejection> {
    if command.len() > MAX_COMMAND_BYTES {
        return Err(CommandRejection::TooLong);
    }

    let mut reader = Reader {
        chars: command.chars().peekable(),
        words: Vec::new(),
        word: None,
        digits: None,
        redirects: CommandRedirects::default(),
        redirected: false,
        behind: false,
    };

    while let Some(c) = reader.chars.next() {
        reader.read(c)?;
    }

    reader.end_word();

    if reader.behind {
        return Err(CommandRejection::Behind);
    }

    is_a_program(reader.words.first().ok_or(CommandRejection::Empty)?)?;
    Ok(ParsedCommand {
        words: reader.words,
        redirects: reader.redirects,
    })
}

/// Checks that `word` can be the name of a program.
fn is_a_program(word: &[WordPiece]) -> Result<(), CommandRejection> {
    let mut name = String::new();
    for piece in word {
        match piece {
            WordPiece::Is(c) => name.push(*c),
            WordPiece::Bracket => name.push('['),
            // Both become a path, and with the slash it is none of the words that are checked below.
            WordPiece::Project | WordPiece::Home => name.push('/'),
            WordPiece::Any | WordPiece::One | WordPiece::Class(_) => return Err(CommandRejection::Pattern),
        }
    }

    // Before a command, a shell takes such a word for an assignment, and the next one for the program.
    if name.contains('=') {
        return Err(CommandRejection::Assignment);
    }

    if name.is_empty() || RESERVED.contains(&name.as_str()) {
        return Err(CommandRejection::Reserved(name));
    }

    Ok(())
}

impl Reader<'_> {
    fn read(&mut self, c: char) -> Result<(), CommandRejection> {
        // Text that could start a second command, or have an effect besides it, is refused and not interpreted.
        match c {
            ' ' | '\t' => self.end_word(),
            '\n' => return Err(CommandRejection::LineBreak),
            '\'' => self.read_single_quoted()?,
            '"' => self.read_double_quoted()?,
            '\\' => match self.chars.next() {
                None => return Err(CommandRejection::Quotes),
                Some('\n') => return Err(CommandRejection::LineBreak),
                Some(c) => self.push_quoted(c)?,
            },
            '$' => self.read_expansion()?,
            '`' => return Err(CommandRejection::Substitution),
            '|' => return Err(self.operator_refusal("|", "||")),
            '&' => return Err(self.operator_refusal("&", "&&")),
            ';' => return Err(CommandRejection::Operator(";")),
            '(' | ')' => return Err(CommandRejection::Subshell),
            // `{}` is no brace expansion; `find` and `xargs` read it.
            '{' if self.chars.next_if_eq(&'}').is_some() => self.push(['{', '}'].map(WordPiece::Is)),
            '{' | '}' => return Err(CommandRejection::Brace),
            '#' if self.word.is_none() => return Err(CommandRejection::Comment),
            '<' | '>' => self.read_redirect(c)?,
            '*' => self.push([WordPiece::Any]),
            '?' => self.push([WordPiece::One]),
            '[' => {
                let class = self.read_class();
                self.push([class]);
            }
            '~' if self.word.is_none() => match self.chars.peek() {
                None | Some('/' | ' ' | '\t') => self.push([WordPiece::Home]),
                Some(_) => return Err(CommandRejection::Expansion),
            },
            c if c.is_control() => return Err(CommandRejection::Control(u32::from(c))),
            c => self.push_plain(c),
        }

        Ok(())
    }

    /// Adds a character that has no meaning for a shell.
    fn push_plain(&mut self, c: char) {
        let digits = match self.digits.take() {
            Some(digits) if c.is_ascii_digit() => Some(digits),
            None if c.is_ascii_digit() && self.word.is_none() => Some(String::new()),
            Some(_) | None => None,
        };
        self.push([WordPiece::Is(c)]);
        self.digits = digits.map(|digits| format!("{digits}{c}"));
    }

    fn push<const N: usize>(&mut self, pieces: [WordPiece; N]) {
        self.digits = None;
        self.word.get_or_insert_default().extend(pieces);
    }

    fn end_word(&mut self) {
        self.behind |= self.redirected && self.word.is_some();
        self.words.extend(self.word.take());
        self.digits = None;
    }

    fn operator_refusal(&mut self, one: &'static str, two: &'static str) -> CommandRejection {
        let doubled = self.chars.peek().is_some_and(|&next| one.starts_with(next));
        CommandRejection::Operator(if doubled { two } else { one })
    }

    /// Adds a literal character.
    fn push_quoted(&mut self, c: char) -> Result<(), CommandRejection> {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            return Err(CommandRejection::Control(u32::from(c)));
        }
        self.push([WordPiece::Is(c)]);
        Ok(())
    }

    fn read_single_quoted(&mut self) -> Result<(), CommandRejection> {
        self.push([]);
        loop {
            match self.chars.next() {
                None => return Err(CommandRejection::Quotes),
                Some('\'') => return Ok(()),
                Some(c) => self.push_quoted(c)?,
            }
        }
    }

    fn read_double_quoted(&mut self) -> Result<(), CommandRejection> {
        self.push([]);

        loop {
            match self.chars.next() {
                None => return Err(CommandRejection::Quotes),
                Some('"') => return Ok(()),
                Some('`') => return Err(CommandRejection::Substitution),
                Some('$') => self.read_expansion()?,
                Some('\\') => match self.chars.peek() {
                    // The shell joins the two lines.
                    Some('\n') => {
                        self.chars.next();
                    }
                    Some(&c) if matches!(c, '$' | '`' | '"' | '\\') => {
                        self.chars.next();
                        self.push_quoted(c)?;
                    }
                    Some(_) | None => self.push_quoted('\\')?,
                },
                Some(c) => self.push_quoted(c)?,
            }
        }
    }

    /// Reads the rest of an expansion after `$`: one of the variables that are expanded.
    fn read_expansion(&mut self) -> Result<(), CommandRejection> {
        if self.chars.peek() == Some(&'(') {
            return Err(CommandRejection::Substitution);
        }

        let braced = self.chars.next_if_eq(&'{').is_some();
        let mut name = String::new();
        // Only named variables: the form with operators can run commands.
        while let Some(c) = self.chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }

        if braced && self.chars.next() != Some('}') {
            return Err(CommandRejection::Expansion);
        }

        match (name.as_str(), braced) {
            ("CLAUDE_PROJECT_DIR", _) => self.push([WordPiece::Project]),
            ("HOME", false) => self.push([WordPiece::Home]),
            _ => return Err(CommandRejection::Expansion),
        }

        Ok(())
    }

    /// Reads the rest after `[`: the whole class, or the bracket itself if it is not closed within the word.
    fn read_class(&mut self) -> WordPiece {
        let mut class = String::from("[");
        let mut ahead = self.chars.clone();
        while let Some(c) = ahead.next() {
            match c {
                // A closing bracket at the very beginning belongs to the class.
                ']' if !matches!(class.as_str(), "[" | "[!" | "[^") => {
                    class.push(c);
                    self.chars = ahead;
                    return WordPiece::Class(class);
                }
                c if c.is_ascii_alphanumeric() || matches!(c, '!' | '^' | '-' | '_' | '.' | ']' | ',') => {
                    class.push(c);
                }
                _ => break,
            }
        }

        WordPiece::Bracket
    }

    fn read_redirect(&mut self, c: char) -> Result<(), CommandRejection> {
        // Digits directly before the sign name the redirected stream; they are no word.
        let number = self.digits.take();
        if number.is_some() {
            self.word = None;
        }

        self.end_word();
        self.redirected = true;

        // A process substitution would start another command.
        if self.chars.peek() == Some(&'(') {
            return Err(CommandRejection::Substitution);
        }

        let of_errors = match (c, number.as_deref()) {
            ('>', None | Some("1")) => false,
            ('>', Some("2")) => true,
            _ => return Err(CommandRejection::Redirect),
        };

        // Spaces may stand only before a file name: `2>& 1` is not among the allowed redirects.
        let joins = self.chars.next_if_eq(&'&').is_some();
        while !joins && self.chars.next_if(|&c| matches!(c, ' ' | '\t')).is_some() {}

        let mut target = String::new();
        while let Some(c) = self.chars.next_if(|&c| !ends_target(c)) {
            target.push(c);
        }

        match (of_errors, joins, target.as_str()) {
            (true, true, "1") if self.redirects.silent => self.redirects.errors = StderrTarget::Nowhere,
            (true, true, "1") => self.redirects.errors = StderrTarget::WithOutput,
            (true, false, "/dev/null") => self.redirects.errors = StderrTarget::Nowhere,
            (false, false, "/dev/null") => {
                // If standard error joined standard output before, it keeps the former destination: it is captured.
                self.redirects.silent = true;
            }
            _ => return Err(CommandRejection::Redirect),
        }

        Ok(())
    }
}

const fn ends_target(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')')
}
