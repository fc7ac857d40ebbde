//! One command line as its words, or why it is more than one plain command. *Pure.*

use std::iter::Peekable;
use std::str::Chars;

/// Longest command line, bytes.
const MAX_COMMAND_BYTES: usize = 16 * 1_024;

/// Words that mean something to a shell where a command's name stands.
const RESERVED: [&str; 33] = [
    "!", "[[", "]]", "alias", "builtin", "case", "command", "coproc", "do", "done", "elif", "else", "esac", "eval",
    "exec", "fi", "for", "function", "if", "in", "select", "set", "shopt", "source", "then", "time", "trap", "unalias",
    "until", "while", ".", "enable", "export",
];

/// Why a command is not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing is there, or only redirects.
    #[error("there is no command")]
    Empty,
    /// It is too long.
    #[error("longer than {MAX_COMMAND_BYTES} bytes")]
    TooLong,
    /// `|`, `||`, `&&`, `;`, `&`.
    #[error("`{0}` runs more than one command")]
    Operator(&'static str),
    /// A line break outside of quotes, or one that is escaped.
    #[error("a line break outside of quotes")]
    LineBreak,
    /// A control character.
    #[error("control character U+{0:04X}")]
    Control(u32),
    /// `$( )`, backticks, `<( )`, `>( )`.
    #[error("a substitution runs another command")]
    Substitution,
    /// `$name`, `${ }`, `$'…'`.
    #[error("`$` outside of single quotes: what it stands for cannot be checked")]
    Expansion,
    /// `( )`.
    #[error("a subshell")]
    Subshell,
    /// `{ }`.
    #[error("a brace outside of quotes")]
    Brace,
    /// A file name pattern that could become an option, or a program.
    #[error("a file name pattern at the beginning of a word could become an option")]
    Pattern,
    /// `#`.
    #[error("a comment")]
    Comment,
    /// A redirect to a file.
    #[error("a redirect to anything but /dev/null and an open descriptor")]
    Redirect,
    /// A blank behind a backslash.
    #[error("an escaped blank: use quotes")]
    Blank,
    /// A word behind a redirect.
    #[error("a word behind a redirect: redirects stand at the end")]
    Behind,
    /// A quote without its end.
    #[error("unbalanced quotes")]
    Quotes,
    /// `NAME=value command`.
    #[error("an assignment before the command")]
    Assignment,
    /// A word of the shell's own where the command stands.
    #[error("`{0}` is a word of the shell")]
    Reserved(String),
    /// No entry takes it whole.
    #[error("no entry of the allow-list takes the whole command")]
    NoEntry,
    /// With this option the program writes a file or runs another.
    #[error("option `{0}` writes files or runs other programs")]
    Option(String),
}

/// A command that is one plain command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spelled {
    /// Its words as the program gets them, but for patterns and `~`.
    pub words: Vec<String>,
    /// Whether a shell has to read it: it redirects, or names files by a pattern or by `~`.
    pub needs_shell: bool,
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    words: Vec<String>,
    word: Option<String>,
    /// Whether the word at hand is digits without quotes: the number of a descriptor, where a redirect follows.
    plain_digits: bool,
    needs_shell: bool,
    /// A redirect was read.
    redirected: bool,
    /// A word stands behind it.
    behind: bool,
}

/// Reads `command` as one plain command.
///
/// # Errors
/// [`Refusal`] says what makes it more, or something that cannot be checked.
pub fn spelled(command: &str) -> Result<Spelled, Refusal> {
    if command.len() > MAX_COMMAND_BYTES {
        return Err(Refusal::TooLong);
    }
    let mut reader = Reader {
        chars: command.chars().peekable(),
        words: Vec::new(),
        word: None,
        plain_digits: false,
        needs_shell: false,
        redirected: false,
        behind: false,
    };
    while let Some(c) = reader.chars.next() {
        reader.read(c)?;
    }
    reader.end_word();
    if reader.behind {
        return Err(Refusal::Behind);
    }
    let name = reader.words.first().ok_or(Refusal::Empty)?;
    if name.contains('=') {
        return Err(Refusal::Assignment);
    }
    if name.is_empty() || RESERVED.contains(&name.as_str()) {
        return Err(Refusal::Reserved(name.clone()));
    }
    Ok(Spelled {
        words: reader.words,
        needs_shell: reader.needs_shell,
    })
}

impl Reader<'_> {
    fn read(&mut self, c: char) -> Result<(), Refusal> {
        match c {
            ' ' | '\t' => self.end_word(),
            '\n' => return Err(Refusal::LineBreak),
            '\'' => self.single()?,
            '"' => self.double()?,
            '\\' => match self.chars.next() {
                None => return Err(Refusal::Quotes),
                Some('\n') => return Err(Refusal::LineBreak),
                Some(' ' | '\t') => return Err(Refusal::Blank),
                Some(c) => self.quoted(c)?,
            },
            '$' if self.chars.peek() == Some(&'(') => return Err(Refusal::Substitution),
            '$' => return Err(Refusal::Expansion),
            '`' => return Err(Refusal::Substitution),
            '|' => return Err(self.operator("|", "||")),
            '&' => return Err(self.operator("&", "&&")),
            ';' => return Err(Refusal::Operator(";")),
            '(' | ')' => return Err(Refusal::Subshell),
            '{' | '}' => return Err(Refusal::Brace),
            '#' if self.word.is_none() => return Err(Refusal::Comment),
            '<' | '>' => self.redirect(c)?,
            '*' | '?' | '[' => self.pattern(c)?,
            c if c.is_control() => return Err(Refusal::Control(u32::from(c))),
            c => {
                self.needs_shell |= c == '~' && self.word.is_none();
                self.plain_digits = c.is_ascii_digit() && (self.word.is_none() || self.plain_digits);
                self.word.get_or_insert_default().push(c);
            }
        }
        Ok(())
    }

    fn end_word(&mut self) {
        self.behind |= self.redirected && self.word.is_some();
        self.words.extend(self.word.take());
        self.plain_digits = false;
    }

    fn operator(&mut self, one: &'static str, two: &'static str) -> Refusal {
        let doubled = self.chars.peek().is_some_and(|&next| one.starts_with(next));
        Refusal::Operator(if doubled { two } else { one })
    }

    /// A character that stands for itself.
    fn quoted(&mut self, c: char) -> Result<(), Refusal> {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            return Err(Refusal::Control(u32::from(c)));
        }
        self.plain_digits = false;
        self.word.get_or_insert_default().push(c);
        Ok(())
    }

    fn single(&mut self) -> Result<(), Refusal> {
        self.plain_digits = false;
        self.word.get_or_insert_default();
        loop {
            match self.chars.next() {
                None => return Err(Refusal::Quotes),
                Some('\'') => return Ok(()),
                Some(c) => self.quoted(c)?,
            }
        }
    }

    fn double(&mut self) -> Result<(), Refusal> {
        self.plain_digits = false;
        self.word.get_or_insert_default();
        loop {
            match self.chars.next() {
                None => return Err(Refusal::Quotes),
                Some('"') => return Ok(()),
                Some('`') => return Err(Refusal::Substitution),
                Some('$') if self.chars.peek() == Some(&'(') => return Err(Refusal::Substitution),
                Some('$') => return Err(Refusal::Expansion),
                Some('\\') => match self.chars.peek() {
                    Some('\n') => return Err(Refusal::LineBreak),
                    Some(&c) if matches!(c, '$' | '`' | '"' | '\\') => {
                        self.chars.next();
                        self.quoted(c)?;
                    }
                    Some(_) | None => self.quoted('\\')?,
                },
                Some(c) => self.quoted(c)?,
            }
        }
    }

    /// What a pattern becomes begins as the pattern does: with neither a wildcard nor a hyphen it is no option.
    fn pattern(&mut self, c: char) -> Result<(), Refusal> {
        let begun = self
            .word
            .as_ref()
            .filter(|word| !word.is_empty() && !word.starts_with('-'));
        if begun.is_none() || self.words.is_empty() {
            return Err(Refusal::Pattern);
        }
        self.needs_shell = true;
        self.plain_digits = false;
        self.word.get_or_insert_default().push(c);
        Ok(())
    }

    fn redirect(&mut self, c: char) -> Result<(), Refusal> {
        if self.plain_digits {
            self.word = None;
        }
        self.end_word();
        self.needs_shell = true;
        self.redirected = true;
        match (c, self.chars.peek()) {
            (_, Some('(')) => return Err(Refusal::Substitution),
            ('>', Some('&')) => {
                self.chars.next();
                return self.descriptor();
            }
            ('>', Some('>')) => {
                self.chars.next();
            }
            (_, Some(_) | None) => {}
        }
        while self.chars.next_if(|&c| matches!(c, ' ' | '\t')).is_some() {}
        let mut target = String::new();
        while let Some(c) = self.chars.next_if(|&c| !ends_target(c)) {
            target.push(c);
        }
        if target == "/dev/null" {
            Ok(())
        } else {
            Err(Refusal::Redirect)
        }
    }

    /// `>&1`: digits up to the word's end.
    fn descriptor(&mut self) -> Result<(), Refusal> {
        let mut digits = 0;
        while self.chars.next_if(char::is_ascii_digit).is_some() {
            digits += 1;
        }
        match self.chars.peek() {
            None | Some(' ' | '\t' | '\n' | '<' | '>' | ';' | '|' | '&') if digits == 1 => Ok(()),
            None | Some(_) => Err(Refusal::Redirect),
        }
    }
}

const fn ends_target(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')')
}
