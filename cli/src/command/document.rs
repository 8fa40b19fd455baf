//! The documents that `oncebox` writes: completions for shells, the manual page.

use std::io::{self, Write as _};

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use oncebox_connect::config::OPTIONS;

use super::help::{EXIT_CODES, examples};

pub(super) fn commands() -> [Command; 2] {
    let shell = Arg::new("shell")
        .required(true)
        .value_parser(clap::value_parser!(Shell))
        .help("The shell that is to complete `oncebox`");
    [
        Command::new("completions")
            .about("Print the completions for a shell, to be stored where it looks")
            .arg(shell),
        Command::new("man").about("Print the manual page, for man(1)"),
    ]
}

/// The document that was asked for, if one was.
pub(super) fn write(command: &str, flags: &ArgMatches, mut parser: Command) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    match command {
        "completions" => {
            let shell = *flags.get_one::<Shell>("shell")?;
            clap_complete::generate(shell, &mut parser, "oncebox", &mut text);
        }
        // Writing to memory does not fail.
        "man" => manual(parser, &mut text).ok()?,
        _ => return None,
    }
    Some(text)
}

/// One page with all commands in it, so that it refers to no other.
fn manual(mut parser: Command, text: &mut Vec<u8>) -> io::Result<()> {
    parser.build();
    let page = Man::new(parser.clone());
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_options_section(text)?;
    for command in parser.get_subcommands().filter(|command| command.get_name() != "help") {
        section(command, text)?;
    }
    let secrets = OPTIONS.iter().filter(|option| option.is_secret);
    entries("ENVIRONMENT", secrets.map(|option| (option.environment, option.help)), text)?;
    entries("EXIT STATUS", EXIT_CODES.iter().copied(), text)?;
    entries("EXAMPLES", examples(), text)
}

/// A section for a command that does something; the sections that clap_mangen makes stand below it.
fn section(command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    let mut inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    inner.try_for_each(|inner| section(inner, text))?;
    // One with commands below it that does something by itself too takes arguments instead of them.
    if command.has_subcommands() && !command.is_args_conflicts_with_subcommands_set() {
        return Ok(());
    }
    let (mut own, page) = (Vec::new(), Man::new(command.clone()));
    page.render_synopsis_section(&mut own)?;
    page.render_description_section(&mut own)?;
    page.render_options_section(&mut own)?;
    let name = command.get_bin_name().unwrap_or_default();
    writeln!(text, ".SH \"{}\"", escaped(name))?;
    text.write_all(String::from_utf8_lossy(&own).replace("\n.SH ", "\n.SS ").as_bytes())
}

fn entries<'a>(
    head: &str,
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    text: &mut Vec<u8>,
) -> io::Result<()> {
    writeln!(text, ".SH \"{head}\"")?;
    for (name, meaning) in entries {
        writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(meaning))?;
    }
    Ok(())
}

/// As roff prints it unchanged.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}
