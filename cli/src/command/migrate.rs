//! `oncebox migrate`: bring the schema up to date, or hand its statements to another tool.

mod files;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use oncebox_connect::{
    config::{ConfigError, Values},
    postgres::connect_postgres,
    words::counted,
};
use oncebox_schema::{
    LATEST_VERSION, Lanes, RolePrefix, SchemaName, check_version, installed_lanes, installed_version,
    migrate_with_roles,
    script::{Step, steps},
};
use tokio::task::JoinSet;

use self::files::Format;
use super::{On, Run, output};

/// Install the schema, or bring it up to date
#[derive(Default, clap::Args)]
pub(crate) struct Migrate {
    /// Lanes of a new outbox, 1 to 256; fixed when it is installed [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    lanes: Option<u16>,
    #[arg(long = "role-prefix", value_name = "PREFIX", value_parser = role_prefix, help = ROLES)]
    roles: Option<RolePrefix>,
    /// Print the steps that are missing, and change nothing
    #[arg(id = "dry-run", long, group = "instead")]
    dry_run: bool,
    /// End with exit code 1 if this program does not work with the schema as it is
    #[arg(long, group = "instead")]
    check: bool,
    /// Print the statements instead of running them; asks no database
    #[arg(long, group = "instead")]
    sql: bool,
    /// Write the statements as migrations of another tool, behind those that are there
    #[arg(long, value_name = "DIR", group = "instead")]
    extract: Option<PathBuf>,
    /// The tool that runs them [default: plain]
    #[arg(long, value_name = "TOOL", requires = "extract")]
    format: Option<Format>,
    /// The version of the schema that the statements begin at [default: 0, a new installation]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=i64::from(LATEST_VERSION)))]
    from: Option<i32>,
}

const ROLES: &str =
    "What the names of the four roles begin with [default: SCHEMA_DATABASE, or what they begin with already]";

fn role_prefix(text: &str) -> Result<RolePrefix, String> {
    text.parse().map_err(|error: oncebox_schema::InvalidRolePrefix| error.to_string())
}

impl Migrate {
    /// The statements, or the names of the files that were written, if they were asked for: neither
    /// needs a database.
    pub(super) fn write(&self, values: &Values) -> Option<Result<Vec<u8>, ConfigError>> {
        let is_asked = self.sql || self.extract.is_some();
        is_asked.then(|| self.written(values).map_err(|problem| ConfigError(vec![problem])))
    }

    fn lanes(&self) -> Option<Lanes> {
        self.lanes.and_then(Lanes::new)
    }

    fn written(&self, values: &Values) -> Result<Vec<u8>, String> {
        let schema = values
            .get("schema")
            .filter(|name| !name.is_empty())
            .map_or(Ok(SchemaName::default()), |name| {
                name.parse().map_err(|error| format!("--schema: {error}"))
            })?;
        let lanes = self.lanes().unwrap_or_default();
        let steps = steps(&schema, lanes, self.roles.as_ref(), self.from.unwrap_or(0));
        match &self.extract {
            Some(directory) => extract(directory, self.format.unwrap_or(Format::Plain), &steps),
            None => Ok(files::script(&steps).into_bytes()),
        }
    }
}

fn extract(directory: &Path, format: Format, steps: &[Step]) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("--extract: {}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    let mut there = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_script = entry.path().extension().is_some_and(|ending| ending == "py");
        let text = if is_script { fs::read_to_string(entry.path()).map_err(failed)? } else { String::new() };
        there.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    let mut written = BTreeSet::new();
    for (name, text) in
        files::files(format, steps, &there).map_err(|problem| format!("--extract: {problem}"))?
    {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(directory)).map_err(failed)?;
        fs::write(&path, text).map_err(failed)?;
        written.insert(path.display().to_string());
    }
    Ok(written.into_iter().map(|path| path + "\n").collect::<String>().into_bytes())
}

impl Run for Migrate {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut tasks = JoinSet::new();
        let config = &on.outbox;
        let mut client = connect_postgres(config, &mut tasks).await?;
        let schema = config.schema();
        if self.check {
            check_version(&client, schema).await?;
            return output::end(&format!("this program works with schema {schema} as it is\n"));
        }
        if let (Some(wanted), Some(found)) = (self.lanes(), installed_lanes(&client, schema).await?) {
            anyhow::ensure!(
                wanted == found,
                "schema \"{schema}\" has {}, not {wanted}: their number is fixed when it is installed; leave \
                 --lanes out. Nothing was changed",
                counted(found, "lane")
            );
        }
        if self.dry_run {
            return output::end(&missing(schema, installed_version(&client, schema).await?));
        }
        let lanes = self.lanes().unwrap_or_default();
        let migrated = migrate_with_roles(&mut client, schema, lanes, self.roles.as_ref()).await?;
        // The warnings of PostgreSQL are logged before the line that says `migrated`.
        drop(client);
        while tasks.join_next().await.is_some() {}
        tracing::info!(%schema, from = migrated.from, to = migrated.to, "migrated");
        Ok(0)
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
