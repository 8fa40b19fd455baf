//! Places one order from the command line: `order REQUEST_KEY CUSTOMER CENTS`.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the tables of
//! `src/order/schema.sql`.

use anyhow::{Context, Result};
use oncebox_examples::{
    config,
    order::{Request, place_order},
};
use oncebox_outbox::Outbox;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it did")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key, customer, cents] = arguments.as_slice() else {
        anyhow::bail!("usage: order REQUEST_KEY CUSTOMER CENTS");
    };
    let customer = customer.parse().context("read CUSTOMER, a number")?;
    let request =
        Request { key: key.clone(), customer, cents: cents.parse().context("read CENTS, a number")? };

    let pool = config::pool(&config::required("DATABASE_URL")?, 1)?;
    let mut client = pool.get().await.context("connect to PostgreSQL")?;
    let outbox = Outbox::default();
    outbox.check(&client).await?;
    let transaction = client.transaction().await?;
    let placed = place_order(&transaction, &outbox, &config::subject("orders.placed"), &request).await?;
    // Until here nothing has happened; from here on the order exists and its payment will be asked
    // for.
    transaction.commit().await.context("commit the order")?;
    println!("order {} is number {} of customer {}", placed.order, placed.number, placed.customer);
    Ok(())
}
