//! A chapter as its test reads it: files to be written and commands to be run, in the order of the text.
//!
//! - A block of `console` is commands behind `$ `, each with what it says below it.
//! - Any other block is a file. Its first line is a comment that names it: `# job.toml`, `// my_data/src/lib.rs`.
//! - `<!-- needs: WHAT -->` above a block has it left out where there is no such thing; with `, or FILE from PATH` behind
//!   it, FILE is then a copy of what lies at PATH in the repository.

/// What a block wants that not every machine has.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    pub what: String,
    /// The file that stands in for what the block would have made, and where it is in the repository.
    pub or: Option<(String, String)>,
}

#[derive(Debug, PartialEq)]
pub struct Block {
    pub needs: Option<Needs>,
    pub content: Content,
}

#[derive(Debug, PartialEq)]
pub enum Content {
    File { path: String, text: String },
    Console(Vec<Command>),
}

#[derive(Debug, Default, PartialEq)]
pub struct Command {
    /// Of the chapter, from 1.
    pub line: usize,
    pub text: String,
    pub expected: Vec<String>,
    /// The next command is `echo $?`, which shows it: else it has to be 0.
    pub shows_its_code: bool,
}

/// All blocks of a chapter.
///
/// # Errors
/// Where a block is neither, with its line.
pub fn read(chapter: &str) -> Result<Vec<Block>, String> {
    let mut lines = chapter.lines().zip(1..);
    let (mut blocks, mut needs) = (Vec::new(), None);
    while let Some((line, at)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- needs: ") {
            needs = Some(read_needs(comment).ok_or_else(|| format!("line {at}: {line}"))?);
        } else if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<(&str, usize)> = lines.by_ref().take_while(|(line, _)| *line != "```").collect();
            let content = match language {
                "console" => commands(&inside).map(Content::Console),
                _ => file(&inside),
            };
            let content = content.ok_or_else(|| {
                format!(
                    "line {at}: a block of `{language}` that is neither commands nor a file with its name"
                )
            })?;
            blocks.push(Block { needs: needs.take(), content });
        } else if !line.is_empty() && needs.is_some() {
            return Err(format!("line {at}: no block follows what is needed"));
        }
    }
    Ok(blocks)
}

fn read_needs(comment: &str) -> Option<Needs> {
    let said = comment.strip_suffix(" -->")?;
    let Some((what, or)) = said.split_once(", or ") else {
        return Some(Needs { what: said.into(), or: None });
    };
    let (file, from) = or.split_once(" from ")?;
    Some(Needs { what: what.into(), or: Some((file.into(), from.into())) })
}

fn file(inside: &[(&str, usize)]) -> Option<Content> {
    let (first, _) = inside.first()?;
    let path = first.strip_prefix("# ").or_else(|| first.strip_prefix("// "))?;
    let is_a_name = path.contains('.') && !path.contains(' ') && !path.starts_with('/');
    let text: String = inside.iter().flat_map(|(line, _)| [line, "\n"]).collect();
    is_a_name.then(|| Content::File { path: path.into(), text })
}

fn commands(inside: &[(&str, usize)]) -> Option<Vec<Command>> {
    let mut commands: Vec<Command> = Vec::new();
    for (line, at) in inside {
        if let Some(text) = line.strip_prefix("$ ") {
            if let (Some(before), "echo $?") = (commands.last_mut(), text) {
                before.shows_its_code = true;
            }
            commands.push(Command { line: *at, text: text.into(), ..Command::default() });
        } else if let (Some(more), Some(command)) = (line.strip_prefix("> "), commands.last_mut())
            && command.text.ends_with('\\')
        {
            command.text += &format!("\n{more}");
        } else {
            commands.last_mut()?.expected.push((*line).to_owned());
        }
    }
    (!commands.is_empty()).then_some(commands)
}

#[test]
fn a_chapter_is_files_and_commands() {
    let text = "Text.\n\n```toml\n# job.toml\nx = 1\n```\n```console\n$ a \\\n> b\nsaid\n$ echo $?\n2\n```\n\
                <!-- needs: torch, or net.pt from jobs/net.pt -->\n```console\n$ python net.py\n```\n";
    let blocks = read(text).unwrap();
    assert_eq!(
        blocks[0].content,
        Content::File { path: "job.toml".into(), text: "# job.toml\nx = 1\n".into() }
    );
    let Content::Console(commands) = &blocks[1].content else { panic!("{blocks:?}") };
    assert_eq!((commands[0].text.as_str(), commands[0].line), ("a \\\nb", 8));
    assert_eq!(
        (commands[0].expected.as_slice(), commands[0].shows_its_code),
        (&["said".to_owned()][..], true)
    );
    assert!(!commands[1].shows_its_code);
    let or = Some(("net.pt".into(), "jobs/net.pt".into()));
    assert_eq!(blocks[2].needs, Some(Needs { what: "torch".into(), or }));
}

#[test]
fn a_block_that_would_not_be_run_is_refused() {
    for (text, line) in [
        ("```toml\nx = 1\n```", 1),
        ("\n```\nplain\n```", 2),
        ("```console\nno command\n```", 1),
        ("<!-- needs: torch -->\nText.", 2),
    ] {
        let refused = read(text).unwrap_err();
        assert!(refused.starts_with(&format!("line {line}: ")), "{text}: {refused}");
    }
}
