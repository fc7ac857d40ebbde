//! Converts the matcher of a Claude Code hook to globs of tool names. *Pure.*

/// Prefix of the names of Claude Code's MCP tools; here they are `{server}__{tool}`.
const MCP: &str = "mcp__";

/// Tools that a hook is called for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// Globs of the tools' names; empty for all tools.
    pub(super) globs: Vec<String>,
    /// Those of the globs that are names of Claude Code's own tools.
    pub(super) of_claude: Vec<String>,
}

/// Parses `matcher`: an empty one and `*` mean all tools, letters and `|` are names, and everything else is a regular
/// expression that matches anywhere in a name.
///
/// # Errors
/// Returns the reason, for people, if no globs have the same meaning.
pub(super) fn tools(matcher: &str) -> Result<Tools, String> {
    let mut tools = Tools::default();
    if matches!(matcher, "" | "*" | ".*") {
        return Ok(tools);
    }

    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let are_names = matcher.chars().all(|c| is_name(c) || c == '|');
    for one in matcher.split('|') {
        let glob = if are_names { Some(one.to_owned()) } else { glob(one) };
        let glob = glob.filter(|glob| !glob.is_empty());
        let glob = glob.ok_or_else(|| format!("its matcher `{matcher}` is a pattern that `tools:` cannot say"))?;

        match glob.strip_prefix(MCP) {
            Some(name) => tools.globs.push(name.to_owned()),
            None => {
                tools.of_claude.push(glob.clone());
                tools.globs.push(glob);
            }
        }
    }

    Ok(tools)
}

/// Returns the glob that matches the same names as the regular expression `text`, if it has only `.*` and anchors.
fn glob(text: &str) -> Option<String> {
    let (text, from_start) = text.strip_prefix('^').map_or((text, false), |rest| (rest, true));
    let (text, to_end) = text.strip_suffix('$').map_or((text, false), |rest| (rest, true));
    let parts: Vec<&str> = text.split(".*").collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !parts.iter().all(|part| part.chars().all(is_name)) {
        return None;
    }

    let mut glob = parts.join("*");
    // Names of MCP tools begin with this prefix, even if the expression finds it elsewhere.
    if !from_start && !glob.starts_with('*') && !glob.starts_with(MCP) {
        glob.insert(0, '*');
    }
    if !to_end && !glob.ends_with('*') {
        glob.push('*');
    }

    Some(glob)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(matcher: &str, expected: Option<&[&str]>) {
        let found = tools(matcher).ok().map(|tools| tools.globs);
        let expected = expected.map(|globs| globs.iter().map(|&glob| glob.to_owned()).collect());
        assert_eq!(found, expected, "{matcher}");
    }

    #[test]
    fn matchers_are_globs_or_refused() {
        check("", Some(&[]));
        check("*", Some(&[]));
        check("Bash", Some(&["Bash"]));
        check("Edit|Write", Some(&["Edit", "Write"]));
        check("mcp__files__write_file", Some(&["files__write_file"]));
        check("mcp__files__.*", Some(&["files__*"]));
        check("Notebook.*", Some(&["*Notebook*"]));
        check("^Notebook.*|^Read$", Some(&["Notebook*", "Read"]));
        check("mcp__.*__write.*", Some(&["*__write*"]));
        for matcher in ["[A-Z]+", "(Edit|Write)", "Edit|", "Bash\\b", "^(?!Read)"] {
            check(matcher, None);
        }
        assert_eq!(tools("Bash|mcp__a__b").expect("names").of_claude, ["Bash"]);
    }
}
