//! The names of the roles: each database's own, so that no outbox is open to members of another's.

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::Postgres;

use crate::relay::{
    process::{run, run_ok},
    support::client,
};

async fn prefix(url: &str) -> String {
    client(url).await.query_one("SELECT role_prefix FROM oncebox.installation", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_relay_of_one_database_cannot_read_the_outbox_of_another() {
    let server = Postgres::start().await.unwrap();
    let admin = client(&server.url("postgres")).await;
    let long = "a".repeat(60);
    for name in ["orders", "payments", "My-Orders", "my_orders", &long] {
        admin.batch_execute(&format!("CREATE DATABASE \"{name}\"")).await.unwrap();
        migrate(&mut *client(&server.url(name)).await, &SchemaName::default(), Lanes::default())
            .await
            .unwrap();
    }
    admin.batch_execute("CREATE ROLE orders_relay LOGIN IN ROLE oncebox_orders_relay").await.unwrap();
    let as_relay = |name: &str| server.url(name).replacen("postgres@", "orders_relay@", 1);
    let read = "SELECT count(*) FROM oncebox.message";
    client(&as_relay("orders")).await.execute(read, &[]).await.unwrap();
    client(&as_relay("payments")).await.execute(read, &[]).await.unwrap_err();
    // Names that are no part of a role's as they are, or too long, stay apart.
    let names = [prefix(&server.url("My-Orders")).await, prefix(&server.url("my_orders")).await];
    assert!(names[0].starts_with("oncebox_my_orders_") && names[1] == "oncebox_my_orders", "{names:?}");
    assert_eq!(prefix(&server.url(&long)).await.len(), 54);
}

#[tokio::test]
async fn role_names_stay_what_they_are_until_somebody_asks_for_others() {
    let server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    run_ok(&url, &["migrate", "--role-prefix", "outbox"]).await;
    assert_eq!(prefix(&url).await, "outbox");
    let admin = client(&url).await;
    admin.batch_execute("CREATE ROLE relay LOGIN IN ROLE outbox_relay").await.unwrap();
    run_ok(&url, &["migrate"]).await;
    assert_eq!(prefix(&url).await, "outbox");
    // New roles are granted all; members of the old ones keep their rights until they are moved.
    run_ok(&url, &["migrate", "--role-prefix", "oncebox_postgres"]).await;
    let may = "SELECT has_table_privilege('relay', 'oncebox.cursor', 'INSERT')";
    let asked = async || -> bool { admin.query_one(may, &[]).await.unwrap().get(0) };
    assert!(asked().await);
    admin.batch_execute("DROP OWNED BY outbox_relay; GRANT oncebox_postgres_relay TO relay").await.unwrap();
    assert!(asked().await);

    let (code, _, log) = run(&url, &["migrate", "--role-prefix", "Mine"]).await;
    assert_eq!(code, 64, "{log}");
    assert!(log.contains("role prefix \"Mine\" is not 1 to 54 characters"), "{log}");
}
