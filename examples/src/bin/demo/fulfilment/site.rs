//! The shop, the three services and the gateway: their databases, relays and processes.

use std::net::TcpListener;

use anyhow::{Context, Result};
use deadpool_postgres::{Object, Pool};
use oncebox_examples::{
    config,
    fulfilment::{billing, inventory, shipping},
    gateway::Books,
};
use oncebox_tests::http_get;

use super::customers;
use crate::{
    processes::{self, Process},
    servers::Servers,
};

/// How long a key of billing rests after its process died.
const LEASE_SECONDS: &str = "1";

const CONSOLE_LISTEN: &str = "127.0.0.1:8321";

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Relay,
    Service,
    /// It takes orders, too.
    Orchestrator,
}

/// All processes of the act, and the databases.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) shop: Pool,
    /// Where the shop takes orders.
    pub(crate) addresses: [String; 2],
    services: [Pool; 3],
    relays: Vec<Process>,
    participants: Vec<Process>,
    shops: Vec<Process>,
    gateway: Process,
    gateway_port: u16,
    console: Option<Process>,
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Site {
    /// `by_file` says whether a file leads the orders, or a definition in Rust.
    pub(crate) async fn start(servers: &Servers, orders: usize, by_file: bool) -> Result<Self> {
        let tables = [
            ("shop", String::new()),
            ("inventory", inventory::SCHEMA.to_owned() + &customers::stocking(orders)),
            ("billing", billing::SCHEMA.to_owned()),
            ("shipping", shipping::SCHEMA.to_owned()),
        ];
        for (service, tables) in &tables {
            processes::migrate(&servers.url(service)).await?;
            let pool = config::pool(&servers.url(service), 1)?;
            pool.get().await?.batch_execute(tables).await.context("create the service's tables")?;
        }
        let pool = |service: &str| config::pool(&servers.url(service), 2);
        let gateway_port = free_port()?;
        let gateway = format!("127.0.0.1:{gateway_port}");
        let addresses = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        let relay = |name: &str, service: &str| Process::relay(name, servers, &servers.url(service));
        let participant = |name: &str, service: &str| {
            let mut environment = environment(servers, service);
            environment.extend([("GATEWAY", gateway.clone()), ("LEASE_SECONDS", LEASE_SECONDS.to_owned())]);
            Process::start(name, servers, "participant", &[service], environment)
        };
        let shop = |name: &str, address: &str| {
            let arguments = if by_file { &[address, "--file"][..] } else { &[address] };
            Process::start(name, servers, "orders", arguments, environment(servers, "shop"))
        };
        let listen = vec![("GATEWAY_LISTEN", gateway.clone())];
        Ok(Self {
            shop: pool("shop")?,
            services: [pool("inventory")?, pool("billing")?, pool("shipping")?],
            relays: vec![
                relay("relay-shop-1", "shop")?,
                relay("relay-shop-2", "shop")?,
                relay("relay-inventory", "inventory")?,
                relay("relay-billing", "billing")?,
                relay("relay-shipping", "shipping")?,
            ],
            participants: vec![
                participant("inventory", "inventory")?,
                participant("billing-1", "billing")?,
                participant("billing-2", "billing")?,
                participant("shipping", "shipping")?,
            ],
            shops: vec![shop("orders-1", &addresses[0])?, shop("orders-2", &addresses[1])?],
            gateway: Process::start("gateway", servers, "gateway", &[], listen)?,
            addresses,
            gateway_port,
            console: console(servers)?,
        })
    }

    /// One of a kind, by chance.
    pub(crate) fn victim(&mut self, kind: Kind) -> &mut Process {
        let processes = match kind {
            Kind::Relay => &mut self.relays,
            Kind::Service => &mut self.participants,
            Kind::Orchestrator => &mut self.shops,
        };
        let which = fastrand::usize(0..processes.len());
        &mut processes[which]
    }

    /// An error when one of them has ended without being killed.
    pub(crate) fn check(&mut self) -> Result<()> {
        let services = self.participants.iter_mut().chain(&mut self.shops);
        let mut processes =
            self.relays.iter_mut().chain(services).chain([&mut self.gateway]).chain(&mut self.console);
        processes.try_for_each(Process::check)
    }

    /// The gateway's account of its movements.
    pub(crate) async fn gateway_books(&self) -> Result<Books> {
        let answer = http_get(self.gateway_port, "/books").await?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an HTTP answer")?;
        serde_json::from_str(body).context("read the gateway's books")
    }

    /// A connection to each database: shop, inventory, billing, shipping.
    pub(crate) async fn databases(&self) -> Result<[Object; 4]> {
        let [inventory, billing, shipping] = &self.services;
        Ok([self.shop.get().await?, inventory.get().await?, billing.get().await?, shipping.get().await?])
    }

    /// The gateway is stopped last: the other processes may call it while they stop.
    pub(crate) async fn stop(self) -> Result<()> {
        let processes =
            self.shops.into_iter().chain(self.participants).chain(self.relays).chain(self.console);
        for process in processes.chain([self.gateway]) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// With `CONSOLE=1`, or an address, the console over all databases.
fn console(servers: &Servers) -> Result<Option<Process>> {
    let Some(wanted) = config::variable("CONSOLE") else { return Ok(None) };
    let listen = if wanted.contains(':') { wanted } else { CONSOLE_LISTEN.to_owned() };
    let mut fleet = format!("nats_url = {:?}\n", servers.nats_url);
    for service in ["shop", "inventory", "billing", "shipping"] {
        fleet += &format!("\n[[database]]\nname = {service:?}\nurl = {:?}\n", servers.url(service));
    }
    let file = processes::log_directory(servers)?.join("fleet.toml");
    std::fs::write(&file, fleet).with_context(|| format!("write {}", file.display()))?;
    println!("console: http://{listen}/");
    let arguments = ["console", "--listen", &listen, "--config", &file.to_string_lossy()];
    Process::start("console", servers, "oncebox", &arguments, Vec::new()).map(Some)
}

/// The arguments of a service.
fn environment(servers: &Servers, service: &str) -> Vec<(&'static str, String)> {
    vec![
        ("DATABASE_URL", servers.url(service)),
        ("NATS_URL", servers.nats_url.clone()),
        ("STREAM", servers.name.clone()),
        ("SUBJECT_PREFIX", servers.prefix()),
    ]
}
