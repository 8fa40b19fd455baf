//! The files of deploy/ agree with the program: names, ports, paths, times, versions.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use async_nats::jetstream::response::Response;
use nkeys::KeyPair;
use oncebox_connect::config::OPTIONS;
use oncebox_tests::{eventually, nats_server_binary};
use tokio::process::Command as Program;
use yaml_rust2::{Yaml, YamlLoader};

use crate::{
    nats::login::credentials,
    relay::{
        process::{Process, get, program},
        support::LIMIT,
    },
};

const FILES: [&str; 4] = ["Containerfile", "compose.yaml", "kubernetes.yaml", "oncebox-relay.service"];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn deployed(file: &str) -> String {
    read(&format!("deploy/{file}"))
}

/// The name after each `start` in a text.
fn words<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(start).map(move |(at, _)| {
        let end = text[at..].find(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)));
        &text[at..end.map_or(text.len(), |end| at + end)]
    })
}

fn default(option: &str) -> &'static str {
    OPTIONS.iter().find(|spec| spec.name == option).and_then(|spec| spec.default).expect(option)
}

fn default_seconds(option: &str) -> i64 {
    default(option).parse().unwrap()
}

/// The version of the workspace.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The first text between the two.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before).and_then(|(_, rest)| rest.split_once(after)).expect(before).0
}

#[test]
fn every_option_that_the_files_name_is_one() {
    let environment: BTreeSet<&str> = OPTIONS.iter().map(|option| option.environment).collect();
    let flags: BTreeSet<&str> = OPTIONS.iter().filter(|option| !option.is_secret).map(|o| o.name).collect();
    let mut found = 0;
    for file in FILES {
        let text = deployed(file);
        for name in
            words(&text, "ONCEBOX_").chain(words(&text, "DATABASE_URL")).chain(words(&text, "NATS_URL"))
        {
            let is_part = environment.iter().any(|known| known.ends_with(name));
            assert!(
                environment.contains(name) || (is_part && !name.starts_with("ONCEBOX")),
                "{file}: {name}"
            );
            found += 1;
        }
        // Our flags end in their unit; those of other programs do not.
        for name in words(&text, "--").map(|word| word.trim_start_matches('-')) {
            assert!(!name.ends_with("-seconds") || flags.contains(name), "{file}: --{name}");
        }
    }
    assert!(found > 8, "{found}");
}

#[test]
fn versions_are_those_that_are_built_and_tested() {
    let rust = read("rust-toolchain.toml");
    let rust = between(&rust, "channel = \"", "\"");
    let container = deployed("Containerfile");
    assert!(container.contains(&format!("ARG RUST_IMAGE=docker.io/library/rust:{rust}-alpine\n")), "{rust}");
    assert!(container.contains(&format!("image.version=\"{}\"", version())));
    let servers = read("tests/servers.txt");
    let postgres = between(&servers, "PostgreSQL ", " ");
    let nats = between(&servers, "nats-server ", ",");
    let compose = deployed("compose.yaml");
    for image in [format!("library/postgres:{postgres}"), format!("library/nats:{nats}-alpine")] {
        assert!(compose.contains(&format!("image: docker.io/{image}\n")), "{image}");
    }
    for file in FILES {
        let text = deployed(file);
        let tags =
            text.split("oncebox:").skip(1).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        for tag in tags {
            assert!(tag.starts_with(version()), "{file}: an image of another version than {}", version());
        }
    }
    assert!(deployed("kubernetes.yaml").contains(&format!("name: oncebox-migrate-{}\n", version())));
}

/// Values of a key of the unit, in their order.
fn unit_values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
}

#[test]
fn the_unit_agrees_with_the_program() {
    let unit = deployed("oncebox-relay.service");
    let one = |key: &str| -> String {
        let values = unit_values(&unit, key);
        assert_eq!(values.len(), 1, "{key}");
        values[0].to_owned()
    };
    let seconds = |key: &str| -> i64 { one(key).parse().unwrap() };
    assert_eq!(one("Type"), "notify");
    assert!(one("ExecStart").ends_with("/bin/oncebox relay"));
    // A server that is away comes back some day; a wrong configuration does not mend itself.
    assert_eq!((one("Restart"), one("StartLimitIntervalSec")), ("always".into(), "0".into()));
    assert_eq!(one("RestartPreventExitStatus"), "64");
    assert!(seconds("TimeoutStopSec") >= default_seconds("grace-seconds") + 5);
    assert!(unit.contains(&format!("--grace-seconds, {} by default", default("grace-seconds"))));
    assert!(unit.contains(&format!("--stuck-seconds ({})", default("stuck-seconds"))));
    assert!((10..=default_seconds("stuck-seconds")).contains(&seconds("WatchdogSec")));
    assert!(unit_values(&unit, "ExecReload").is_empty(), "there is no reload");
    assert_eq!((one("DynamicUser"), one("ProtectSystem")), ("yes".into(), "strict".into()));
    // Each file that the relay is told of is handed over, and each that is handed over is told of.
    let credentials = unit_values(&unit, "LoadCredential");
    let handed: BTreeSet<&str> = credentials.iter().map(|value| value.split_once(':').unwrap().0).collect();
    let told: BTreeSet<&str> =
        unit_values(&unit, "Environment").iter().filter_map(|v| v.split_once("=%d/")).map(|v| v.1).collect();
    assert_eq!(handed, told);
}

/// With the program that was built in its place.
#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_little_exposed() {
    let has_systemd = Command::new("systemd-analyze").arg("--version").output();
    if !has_systemd.is_ok_and(|output| output.status.success()) {
        eprintln!("left out: there is no systemd-analyze here (Debian: package systemd)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("oncebox-relay.service");
    let unit = deployed("oncebox-relay.service");
    fs::write(&path, unit.replace("/usr/local/bin/oncebox", program().to_str().unwrap())).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (ok, text) = analyze(&["verify", "--man=no"]);
    // Notes about other units of this machine are not ours.
    let ours: Vec<&str> = text.lines().filter(|line| line.contains("oncebox")).collect();
    assert!(ok && ours.is_empty(), "{text}");
    // In tenths, with room for other versions of systemd. The rest is mostly the network.
    let (ok, text) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=13"]);
    assert!(ok, "{text}");
}

fn documents(file: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&deployed(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str().unwrap_or_else(|| panic!("no text: {yaml:?}"))
}

fn list(yaml: &Yaml) -> &[Yaml] {
    yaml.as_vec().map_or(&[], Vec::as_slice)
}

/// The port of `0.0.0.0:PORT`, the address that others can reach.
fn open_port(listen: &str) -> i64 {
    listen.strip_prefix("0.0.0.0:").unwrap_or_else(|| panic!("{listen} is seen by nobody")).parse().unwrap()
}

#[test]
fn compose_publishes_on_loopback_and_waits_for_health() {
    let compose = documents("compose.yaml").remove(0);
    let services = compose["services"].as_hash().unwrap();
    for (name, service) in services {
        let image = text(&service["image"]);
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        assert!(tag.starts_with(|c: char| c.is_ascii_digit()), "{name:?}: {image} is not pinned");
        for port in list(&service["ports"]) {
            assert!(text(port).starts_with("127.0.0.1:"), "{name:?}: {port:?}");
        }
        for (needed, how) in service["depends_on"].as_hash().into_iter().flatten() {
            let other = &services[needed];
            match text(&how["condition"]) {
                "service_healthy" => assert!(!list(&other["healthcheck"]["test"]).is_empty(), "{needed:?}"),
                "service_completed_successfully" => assert_eq!(text(&other["restart"]), "no", "{needed:?}"),
                other => panic!("{name:?}: {other}"),
            }
        }
    }
    let relay = &compose["services"]["relay"];
    let port = open_port(text(&relay["environment"]["ONCEBOX_HTTP_LISTEN"]));
    assert!(text(&relay["ports"][0]).ends_with(&format!(":{port}")));
    assert!(default("http-listen").ends_with(&format!(":{port}")));
    assert!(deployed("Containerfile").contains(&format!("\nEXPOSE {port}\n")));
    let grace: i64 = text(&relay["stop_grace_period"]).strip_suffix('s').unwrap().parse().unwrap();
    assert!(grace >= default_seconds("grace-seconds") + 5);
    // The file publishes the variables that its head tells to export.
    let head = deployed("compose.yaml");
    let exported = format!("DATABASE_URL={}", text(&relay["environment"]["DATABASE_URL"]));
    assert!(head.contains(&exported.replace("@postgres:", "@127.0.0.1:")), "{exported}");
}

/// The relay of compose.yaml takes its configuration, and so finds that there is no server.
#[tokio::test]
async fn compose_configures_the_relay() {
    let compose = documents("compose.yaml").remove(0);
    let relay = &compose["services"]["relay"];
    let environment = relay["environment"]
        .as_hash()
        .unwrap()
        .iter()
        .map(|(name, value)| (text(name), text(value).replace("@postgres:5432", "@127.0.0.1:1")));
    refuses_nothing(&environment.collect::<Vec<_>>()).await;
}

async fn refuses_nothing(environment: &[(&str, String)]) {
    let environment = environment.iter().map(|(name, value)| (*name, value.as_str()));
    let (status, log) = Process::start(&["relay"], environment).ended().await;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(log.contains("PostgreSQL at 127.0.0.1:1/orders cannot be reached"), "{log}");
}

/// With the command line of compose.yaml, on free ports, nats-server is healthy where its health
/// check looks.
#[tokio::test]
async fn compose_starts_nats_as_it_asks_for_its_health() {
    let compose = documents("compose.yaml").remove(0);
    let nats = &compose["services"]["nats"];
    let command: Vec<&str> = list(&nats["command"]).iter().map(text).collect();
    let check = text(list(&nats["healthcheck"]["test"]).last().unwrap());
    let (port, path) = check.strip_prefix("http://127.0.0.1:").unwrap().split_once('/').unwrap();
    let directory = tempfile::tempdir().unwrap();
    let free = || std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let (client, monitor) = (free(), free());
    let arguments = command.iter().map(|argument| {
        let argument = argument.replace("=/data", &format!("={}", directory.path().display()));
        argument.replace(port, &monitor.port().to_string())
    });
    let mut server = Program::new(nats_server_binary().unwrap());
    server.args(arguments).args(["--addr=127.0.0.1", &format!("--port={}", client.port())]);
    let _server = server.stderr(std::process::Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("nats-server is healthy", LIMIT, async || {
        tokio::net::TcpStream::connect(monitor).await.ok()?;
        (get(monitor, &format!("/{path}")).await.0 == 200).then_some(())
    })
    .await;
    let client = async_nats::connect(client.to_string()).await.unwrap();
    // async-nats does not decode the account of nats-server 2.9.
    let answer = async_nats::jetstream::new(client).request("INFO", &()).await.expect("JetStream answers");
    assert!(matches!(answer, Response::Ok(serde::de::IgnoredAny)), "JetStream is on: {answer:?}");
    assert!(text(&nats["volumes"][0]).ends_with(":/data"));
}

/// Containers and init containers of all that is in the file, each with the pod that it is in.
fn containers(documents: &[Yaml]) -> Vec<(&Yaml, &Yaml)> {
    let pods = documents.iter().map(|document| &document["spec"]["template"]["spec"]);
    pods.flat_map(|pod| {
        ["containers", "initContainers"]
            .into_iter()
            .flat_map(move |key| list(&pod[key]).iter().map(move |c| (pod, c)))
    })
    .collect()
}

#[test]
fn kubernetes_runs_the_relay_with_the_least_and_stops_it_gently() {
    let documents = documents("kubernetes.yaml");
    let config = text(&documents[0]["data"]["relay.toml"]);
    let port = open_port(between(config, "http_listen = \"", "\""));
    let ours: Vec<_> = containers(&documents)
        .into_iter()
        .filter(|(_, container)| text(&container["image"]).contains("/oncebox:"))
        .collect();
    assert_eq!(ours.len(), 3, "migrate, a sidecar, a relay by itself");
    for (pod, container) in ours {
        let name = text(&container["name"]);
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"].as_bool(), Some(false), "{name}");
        assert_eq!(security["readOnlyRootFilesystem"].as_bool(), Some(true), "{name}");
        assert_eq!(text(&security["capabilities"]["drop"][0]), "ALL", "{name}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"].as_bool(), Some(true), "{name}");
        assert_eq!(text(&pod["securityContext"]["seccompProfile"]["type"]), "RuntimeDefault", "{name}");
        assert_eq!(pod["automountServiceAccountToken"].as_bool(), Some(false), "{name}");
        let user = pod["securityContext"]["runAsUser"].as_i64().unwrap();
        assert!(deployed("Containerfile").contains(&format!("\nUSER {user}:{user}\n")), "{name}");
        assert!(!container["resources"]["limits"]["memory"].is_badvalue(), "{name}");
        // Every file that is named is mounted.
        let mounts = list(&container["volumeMounts"]);
        let variables = list(&container["env"]).iter().map(|variable| text(&variable["value"]));
        let named = variables.chain(config.split('"')).filter(|word| word.starts_with('/'));
        for path in named.filter(|path| text(&container["args"][0]) == "relay" || !path.ends_with(".creds")) {
            let is_below = |mount: &Yaml| path.starts_with(text(&mount["mountPath"]));
            assert!(mounts.iter().any(is_below), "{name}: {path} is not mounted");
        }
        if text(&container["args"][0]) == "migrate" {
            continue;
        }
        assert_eq!(container["ports"][0]["containerPort"].as_i64(), Some(port), "{name}");
        let probes = [("livenessProbe", "/livez"), ("startupProbe", "/livez"), ("readinessProbe", "/readyz")];
        for (probe, path) in probes.into_iter().filter(|(probe, _)| !container[*probe].is_badvalue()) {
            assert_eq!(text(&container[probe]["httpGet"]["path"]), path, "{name}: {probe}");
            assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"], "{name}: {probe}");
        }
        assert!(!container["livenessProbe"].is_badvalue(), "{name}");
        // A sidecar ends after the service, within the same time.
        let is_sidecar = container["restartPolicy"].as_str() == Some("Always");
        let service = if is_sidecar { 30 } else { 0 };
        let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
        assert!(grace >= default_seconds("grace-seconds") + service + 5, "{name}: {grace}");
        // An outage of NATS must not end in an outage of the service.
        assert!(!is_sidecar || container["readinessProbe"].is_badvalue(), "{name}");
        assert!(!is_sidecar || container["startupProbe"].is_badvalue(), "{name}");
    }
}

#[tokio::test]
async fn kubernetes_configures_the_relay() {
    let documents = documents("kubernetes.yaml");
    let directory = tempfile::tempdir().unwrap();
    let secrets = directory.path().to_str().unwrap();
    fs::write(directory.path().join("database-password"), "secret\n").unwrap();
    fs::write(directory.path().join("nats.creds"), credentials(&KeyPair::new_account())).unwrap();
    let config = text(&documents[0]["data"]["relay.toml"]).replace("/run/secrets/oncebox", secrets);
    let config = config.replace("@postgres.example/", "@127.0.0.1:1/");
    let file = directory.path().join("relay.toml");
    fs::write(&file, config).unwrap();
    refuses_nothing(&[("ONCEBOX_CONFIG", file.to_str().unwrap().to_owned())]).await;
}

/// The programs that `cargo install --path cli` installs.
#[test]
fn one_program_is_installed() {
    let manifest = read("cli/Cargo.toml");
    assert_eq!(manifest.matches("[[bin]]").count(), 1);
    assert!(manifest.contains("name = \"oncebox\"\npath = \"src/main.rs\"\n"));
    assert!(
        deployed("oncebox-relay.service").contains("cargo install --path cli --locked --root /usr/local\n")
    );
    assert!(deployed("Containerfile").contains("--package oncebox-cli"));
    // The build sees every member, or cargo refuses the workspace.
    let members = between(&read("Cargo.toml"), "members = [", "]").to_owned();
    let ignore = read(".dockerignore");
    for member in
        members.split(',').map(|member| member.trim().trim_matches('"')).chain(["Cargo.toml", "Cargo.lock"])
    {
        assert!(ignore.lines().any(|line| line == format!("!{member}")), ".dockerignore: {member}");
    }
}
