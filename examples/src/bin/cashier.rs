//! The cashier as a process: settles orders until SIGTERM or Ctrl-C.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the table of
//! `src/cashier/schema.sql`; `NATS_URL`, `STREAM` and `SUBJECT_PREFIX` say where the orders are,
//! `GATEWAY` where the gateway is. Run as many as you like. `LEASE_SECONDS` is how long a key rests
//! after its process died, 30 by default.

use anyhow::Result;
use oncebox_examples::{
    cashier::{self, Cashier, Client},
    config,
};

#[tokio::main]
async fn main() -> Result<()> {
    cashier::serve(Cashier { gateway: Client::new(config::required("GATEWAY")?) }, 8).await
}
