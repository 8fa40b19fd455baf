//! `oncebox migrate`: bring the schema up to date, or hand its statements to another tool.

mod files;

use std::{collections::BTreeSet, fs, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::{
    config::{ConfigError, OutboxConfig, Values},
    postgres::connect_postgres,
    words::counted,
};
use oncebox_schema::{
    LATEST_VERSION, Lanes, RolePrefix, SchemaName, check_version, installed_lanes, installed_version,
    migrate_with_roles, script::steps,
};
use tokio::task::JoinSet;

use self::files::Format;
use super::output;

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let lanes = Arg::new("lanes")
        .long("lanes")
        .value_name("N")
        .value_parser(clap::value_parser!(u16).range(1..=256))
        .help("Lanes of a new outbox, 1 to 256; fixed when it is installed [default: 16]");
    let roles = Arg::new("role-prefix").long("role-prefix").value_name("PREFIX").value_parser(role_prefix).help(
        "What the names of the four roles begin with [default: SCHEMA_DATABASE, or what they begin with already]",
    );
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    clap::Command::new("migrate")
        .about("Install the schema, or bring it up to date")
        .args(connection)
        .arg(lanes)
        .arg(roles)
        .arg(flag("dry-run", "Print the steps that are missing, and change nothing"))
        .arg(flag("check", "End with exit code 1 if this program does not work with the schema as it is"))
        .arg(flag("sql", "Print the statements instead of running them; asks no database"))
        .arg(
            Arg::new("extract")
                .long("extract")
                .value_name("DIR")
                .help("Write the statements as migrations of another tool, behind those that are there"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("TOOL")
                .requires("extract")
                .value_parser(clap::value_parser!(Format))
                .help("The tool that runs them [default: plain]"),
        )
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("N")
                .value_parser(clap::value_parser!(i32).range(0..=i64::from(LATEST_VERSION)))
                .help(
                    "The version of the schema that the statements begin at [default: 0, a new installation]",
                ),
        )
        .group(clap::ArgGroup::new("instead").args(["dry-run", "check", "sql", "extract"]))
}

fn role_prefix(text: &str) -> Result<RolePrefix, String> {
    text.parse().map_err(|error: oncebox_schema::InvalidRolePrefix| error.to_string())
}

/// The statements, or the names of the files that were written, if they were asked for: neither
/// needs a database.
pub(super) fn write(flags: &ArgMatches, values: &Values) -> Option<Result<Vec<u8>, ConfigError>> {
    let directory = flags.get_one::<String>("extract").map(PathBuf::from);
    if directory.is_none() && !flags.get_flag("sql") {
        return None;
    }
    Some(extract(directory, flags, values).map_err(|problem| ConfigError(vec![problem])))
}

fn extract(directory: Option<PathBuf>, flags: &ArgMatches, values: &Values) -> Result<Vec<u8>, String> {
    let schema =
        values.get("schema").filter(|name| !name.is_empty()).map_or(Ok(SchemaName::default()), |name| {
            name.parse().map_err(|error| format!("--schema: {error}"))
        })?;
    let asked = Migrate::new(flags);
    let from = flags.get_one::<i32>("from").copied().unwrap_or(0);
    let steps = steps(&schema, asked.lanes.unwrap_or_default(), asked.roles.as_ref(), from);
    let Some(directory) = directory else { return Ok(files::script(&steps).into_bytes()) };
    let failed = |error: std::io::Error| format!("--extract: {}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    let mut there = Vec::new();
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_script = entry.path().extension().is_some_and(|ending| ending == "py");
        let text = if is_script { fs::read_to_string(entry.path()).map_err(failed)? } else { String::new() };
        there.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    let format = flags.get_one::<Format>("format").copied().unwrap_or(Format::Plain);
    let mut written = BTreeSet::new();
    for (name, text) in
        files::files(format, &steps, &there).map_err(|problem| format!("--extract: {problem}"))?
    {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&directory)).map_err(failed)?;
        fs::write(&path, text).map_err(failed)?;
        written.insert(path.display().to_string());
    }
    Ok(written.into_iter().map(|path| path + "\n").collect::<String>().into_bytes())
}

/// The work to do in a database.
#[derive(Default)]
pub(crate) struct Migrate {
    lanes: Option<Lanes>,
    roles: Option<RolePrefix>,
    dry_run: bool,
    check: bool,
}

impl Migrate {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self {
            lanes: flags.get_one::<u16>("lanes").copied().and_then(Lanes::new),
            roles: flags.get_one::<RolePrefix>("role-prefix").cloned(),
            dry_run: flags.get_flag("dry-run"),
            check: flags.get_flag("check"),
        }
    }

    pub(super) async fn run(&self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut client = connect_postgres(config, &mut tasks).await?;
        let schema = config.schema();
        if self.check {
            check_version(&client, schema).await?;
            output::print(&format!("this program works with schema {schema} as it is\n"))?;
            return Ok(());
        }
        if let (Some(wanted), Some(found)) = (self.lanes, installed_lanes(&client, schema).await?) {
            anyhow::ensure!(
                wanted == found,
                "schema \"{schema}\" has {}, not {wanted}: their number is fixed when it is installed; leave \
                 --lanes out. Nothing was changed",
                counted(found, "lane")
            );
        }
        if self.dry_run {
            output::print(&missing(schema, installed_version(&client, schema).await?))?;
            return Ok(());
        }
        let lanes = self.lanes.unwrap_or_default();
        let migrated = migrate_with_roles(&mut client, schema, lanes, self.roles.as_ref()).await?;
        // The warnings of PostgreSQL are logged before the line that says `migrated`.
        drop(client);
        while tasks.join_next().await.is_some() {}
        tracing::info!(%schema, from = migrated.from, to = migrated.to, "migrated");
        Ok(())
    }
}

/// The steps that a migration would take, a line each.
fn missing(schema: &SchemaName, found: i32) -> String {
    let mut lines = vec![format!("schema {schema}: version {found} of {LATEST_VERSION}")];
    for step in steps(schema, Lanes::default(), None, found) {
        let how = if step.in_transaction { "in a transaction" } else { "beside everybody else" };
        lines.push(format!("  {}, {how}", step.name));
    }
    lines.join("\n") + "\n"
}
