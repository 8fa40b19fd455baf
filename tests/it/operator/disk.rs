//! PostgreSQL's disk is full: commands say so, with the remedy.

use std::process::Command;

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, is_root};
use tempfile::TempDir;
use tokio_postgres::error::SqlState;

use super::{
    doctor::{doctor, text_of},
    status::{assert_finds, status},
};
use crate::{
    relay::{
        process::run,
        support::{client, fresh_stream, stream_config},
    },
    why::support::{assert_held, why},
};

/// A file system of 64 MB, which ends with this value.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` where this process may not mount one.
    fn new() -> Option<Self> {
        let disk = is_root().then(|| Self(tempfile::tempdir().unwrap()))?;
        let owner = Command::new("id").args(["-u", "nobody"]).output().unwrap().stdout;
        let options = format!("size=64m,mode=0700,uid={}", String::from_utf8(owner).unwrap().trim());
        let mount = ["-t", "tmpfs", "-o", &options, "small"];
        let mounted = Command::new("mount").args(mount).arg(disk.0.path()).status().unwrap();
        mounted.success().then_some(disk)
    }

    /// Until nothing more goes onto it.
    fn fill(&self) {
        let file = std::fs::File::create(self.0.path().join("filler")).unwrap();
        let _full = std::io::copy(&mut std::io::repeat(1), &mut &file).unwrap_err();
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a test that failed leaves a server that has files open.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_of_postgresql_is_found_and_named_until_there_is_room() {
    let Some(disk) = SmallDisk::new() else {
        eprintln!("left out: a file system cannot be mounted here");
        return;
    };
    let env = TestEnv::new().await;
    let _stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
    let server = Postgres::start().await.unwrap();
    let admin = client(&server.url("postgres")).await;
    let location = disk.0.path().display();
    admin.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{location}'")).await.unwrap();
    admin.batch_execute("CREATE DATABASE small TABLESPACE small").await.unwrap();
    let url = server.url("small");
    let mut pg = client(&url).await;
    migrate(&mut pg, &SchemaName::default(), Lanes::default()).await.unwrap();
    assert_eq!(run(&url, &["status"]).await.0, 0, "nothing waits");
    assert_eq!(status(&url).await["full_disk"], serde_json::Value::Null);

    pg.execute("SELECT oncebox.enqueue('before', 's', 'p')", &[]).await.unwrap();
    disk.fill();
    let large = "SELECT oncebox.enqueue('k', 's', string_agg(sha256(int4send(n)), '')) FROM generate_series(1, 30000) AS n";
    let refused = pg.execute(large, &[]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::DISK_FULL), "{refused:?}");
    let (code, text, log) = run(&url, &["status"]).await;
    let first = text.lines().nth(1).unwrap();
    let words = ["PostgreSQL takes no writes", "No space left on device"];
    assert!(code == 1 && words.iter().all(|word| first.contains(word)), "{text}{log}");
    let seen = serde_json::from_str(&run(&url, &["status", "--json"]).await.1).unwrap();
    assert_finds(&seen, &[words[0], words[1], "make room"]);
    let (_, told) = why(&url, "", &["before"]).await;
    assert_held(&told["answers"][0], "postgres", &words, &["make room"]);
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    let found = text_of(&seen, "disk-full");
    assert!(code == 1 && found.contains(words[1]) && found.contains("make room"), "{seen}");

    disk.make_room();
    pg.execute("SELECT oncebox.enqueue('k', 's', 'p')", &[]).await.unwrap();
    let seen: serde_json::Value = serde_json::from_str(&run(&url, &["status", "--json"]).await.1).unwrap();
    assert_eq!(seen["full_disk"], serde_json::Value::Null, "{seen}");
    assert_eq!(text_of(&doctor(&url, env.nats_url(), &[]).await.1, "disk-full"), "");
}
