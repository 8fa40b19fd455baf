//! `oncebox dev`: everything that a first message needs, on this machine: PostgreSQL and NATS, the
//! schema, a stream, the relay and the console, until Ctrl-C. For development: one copy of each.

mod find;
mod postgres;
mod server;

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ArgMatches;
use oncebox_connect::config::{Config, ConfigError, OutboxConfig, Sources, Values};
use oncebox_console::{Member, Settings};
use oncebox_relay::Relay;
use tokio::sync::watch;

use self::server::Server;
use super::{On, Run as _, given, migrate::Migrate, output, relay};

/// The stream if none is named: it has the subjects of the tutorials.
const STREAM: &str = "ORDERS=orders.>,payments.>";
const NATS_DEADLINE: Duration = Duration::from_secs(30);

/// The servers and programs to run.
pub(crate) struct Dev {
    values: Values,
    places: Places,
    http: Option<SocketAddr>,
}

/// Run everything on this machine, to try it: servers, schema, stream, relay and console
#[derive(clap::Args)]
#[command(
    long_about = "Run everything on this machine, to try it: servers, schema, stream, relay and console.\n\nServers that \
    you name are used; of the others this starts its own, with the programs that it finds. It prints how to \
    reach them. Ctrl-C ends all that it started. Not for production: nothing here is a copy of anything."
)]
pub(super) struct Places {
    /// Where the servers keep their data; delete it to begin anew
    #[arg(long = "dir", value_name = "DIR", default_value = ".oncebox")]
    directory: PathBuf,
    /// Where the console listens
    #[arg(long = "console-listen", value_name = "IP:PORT", default_value = "127.0.0.1:8321")]
    console: SocketAddr,
}

impl Dev {
    /// The command, and the configuration of its outbox as far as it is known.
    ///
    /// # Errors
    /// All mistakes, before a server is started.
    pub(super) fn new(flags: &ArgMatches, sources: &Sources) -> Result<(Self, OutboxConfig), ConfigError> {
        let mut values = sources.values().clone();
        values.entry("stream").or_insert_with(|| STREAM.to_owned());
        let mut whole = values.clone();
        whole.entry("database-url").or_insert_with(|| "postgres://localhost/dev".to_owned());
        whole.entry("nats-url").or_insert_with(|| "nats://localhost".to_owned());
        let config = config(&whole)?;
        let outbox = config.outbox().clone();
        let dev = Self { values, places: given(flags), http: config.http_listen };
        Ok((dev, outbox))
    }

    pub(super) async fn run(mut self) -> anyhow::Result<u8> {
        let shutdown = relay::shutdown_signal("oncebox dev")?;
        // Before servers are started for nothing.
        let console = TcpListener::bind(self.places.console).with_context(|| {
            format!("serve the console on {}; choose another with --console-listen", self.places.console)
        })?;
        // With port 0 the system has chosen one.
        self.places.console = console.local_addr()?;
        drop(console);
        if let Some(http) = self.http {
            drop(TcpListener::bind(http).with_context(|| {
                format!("serve metrics on {http}; choose another with --http-listen, or off")
            })?);
        }
        std::fs::create_dir_all(&self.places.directory)
            .with_context(|| format!("create {}", self.places.directory.display()))?;
        let directory = self.places.directory.canonicalize()?;
        let mut servers = Vec::new();
        let served = Box::pin(self.serve(&directory, &mut servers, shutdown)).await;
        // NATS first: it has nothing to tell PostgreSQL.
        for server in servers.into_iter().rev() {
            server.stop().await;
        }
        served.map(|()| 0)
    }

    async fn serve(
        &mut self,
        directory: &Path,
        servers: &mut Vec<Server>,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        if !has(&self.values, "database-url") {
            let (server, url) = postgres::start(directory).await?;
            servers.push(server);
            self.values.insert("database-url", url);
        }
        if !has(&self.values, "nats-url") {
            let (server, url) = nats(directory).await?;
            servers.push(server);
            self.values.insert("nats-url", url);
        }
        let config = config(&self.values)?;
        Migrate::default().run(&On { outbox: config.outbox().clone(), config: None }).await?;
        let relay = Relay::connect(config.clone()).await?;
        let (over, ended) = watch::channel(false);
        let until = |mut ended: watch::Receiver<bool>| async move {
            // It also ends when the process that would tell it is gone.
            let _ = ended.wait_for(|over| *over).await;
        };
        let settings = Settings {
            listen: self.places.console,
            hosts: Vec::new(),
            allows_actions: true,
            shows_payloads: true,
            by: "dev".to_owned(),
            tokens: Vec::new(),
            proxy: None,
        };
        settings.check().map_err(|mistakes| anyhow::anyhow!(mistakes.join("\n")))?;
        let member = Member { name: "dev".to_owned(), outbox: config.outbox().clone(), config: Some(config) };
        output::print(&self.told())?;
        let relay = relay.serve(until(ended.clone()));
        let console = oncebox_console::serve(settings, vec![member], until(ended));
        tokio::pin!(relay, console, shutdown);
        // The first that ends ends the others.
        let (mut relay_ended, mut console_ended) = (None, None);
        tokio::select! {
            () = &mut shutdown => {}
            result = &mut relay => relay_ended = Some(result),
            result = &mut console => console_ended = Some(result),
        }
        over.send_replace(true);
        if relay_ended.is_none() {
            relay_ended = Some(relay.await);
        }
        if console_ended.is_none() {
            console_ended = Some(console.await);
        }
        relay_ended.transpose()?;
        console_ended.transpose().with_context(|| format!("serve the console on {}", self.places.console))?;
        Ok(())
    }

    /// The addresses, and the first commands, to be copied.
    fn told(&self) -> String {
        let value = |name| self.values.get(name).map(String::as_str).unwrap_or_default();
        let (database, nats, stream) = (value("database-url"), value("nats-url"), value("stream"));
        let first = stream.split(['=', ',', ';']).nth(1).unwrap_or_default();
        let subject = first.replace(['>', '*'], "placed");
        let rows = [
            ["PostgreSQL".to_owned(), database.to_owned()],
            ["NATS".to_owned(), nats.to_owned()],
            ["streams".to_owned(), stream.to_owned()],
            ["console".to_owned(), format!("http://{}/", self.places.console)],
        ];
        format!(
            "\n{}\nIn another terminal:\n\nexport DATABASE_URL='{database}' NATS_URL='{nats}'\noncebox outbox enqueue hello-1 \
             {subject} '{{\"hello\": \"world\"}}'\noncebox trace hello-1\n\nThe data stays in {}. Ctrl-C ends all of it.\n\n",
            output::table(["SERVICE", "ADDRESS"], &rows),
            self.places.directory.display()
        )
    }
}

/// The configuration of these values, as if all were typed.
fn config(values: &Values) -> Result<Config, ConfigError> {
    Config::from_sources(&Sources::read(values.clone(), [], |_| None))
}

fn has(values: &Values, name: &str) -> bool {
    values.get(name).is_some_and(|text| !text.is_empty())
}

/// A nats-server with JetStream.
async fn nats(directory: &Path) -> anyhow::Result<(Server, String)> {
    let program = find::nats_server()?;
    let store = directory.join("nats");
    Server::end_last("nats", &store, directory).await?;
    server::on_a_port(directory, "nats", 4222, async |port| {
        let arguments = ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &store.to_string_lossy()]
            .map(str::to_owned);
        let mut server = Server::start("nats", &program, &arguments, directory)?;
        server.await_log("Listening for client connections", NATS_DEADLINE).await?;
        Ok((server, format!("nats://127.0.0.1:{port}")))
    })
    .await
}
