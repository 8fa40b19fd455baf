//! Commands that destroy or change something: on a terminal they wait for their word, or take
//! `--yes`.

use std::io::{self, IsTerminal as _, Write as _};

use oncebox_operator::GRAVE;

use clap::{Arg, ArgAction, ArgMatches, Command, Error, error::ErrorKind};

/// Gives all of them their option.
pub(super) fn with_yes(command: Command) -> Command {
    let command =
        match GRAVE.contains(&command.get_name()) {
            true => command.arg(Arg::new("yes").long("yes").action(ArgAction::SetTrue).help(
                "Do not wait for the command's word to be typed; without a terminal none is waited for",
            )),
            false => command,
        };
    command.mut_subcommands(with_yes)
}

/// Waits for the word, unless its rows were shown and are confirmed.
pub(super) fn ask(path: &[&str], flags: &ArgMatches) -> Result<(), Error> {
    let Some(word) = path.last().filter(|word| GRAVE.contains(word)) else { return Ok(()) };
    let is_given = |name| flags.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    if ["yes", "dry-run", "confirm"].into_iter().any(is_given) || !io::stdin().is_terminal() {
        return Ok(());
    }
    let mut typed = String::new();
    let asked = write!(io::stderr(), "--dry-run shows the rows. Type {word} to go on: ");
    asked.and_then(|()| io::stdin().read_line(&mut typed)).map_err(Error::from)?;
    match typed.trim() == *word {
        true => Ok(()),
        false => {
            let problem = format!("{word} was not typed; nothing was done\n");
            Err(Error::raw(ErrorKind::MissingRequiredArgument, problem))
        }
    }
}
