//! What `oncebox` writes about itself: completions for shells, the manual page.

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

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

/// One page, with the options of each command in it.
fn manual(mut parser: Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    parser.build();
    clap_mangen::Man::new(parser.clone()).render(text)?;
    for command in parser.get_subcommands().filter(|command| command.get_name() != "help") {
        let page = clap_mangen::Man::new(command.clone());
        page.render_synopsis_section(text)?;
        page.render_description_section(text)?;
        page.render_options_section(text)?;
    }
    Ok(())
}
