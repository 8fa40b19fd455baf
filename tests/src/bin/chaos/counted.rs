//! The effects that were counted, for the specification: which transaction wrote each row, and how
//! often the gateway acted for each key.

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    audit::{CASHIER, Facts},
    consume::EACH,
    order::RECEIPT_STEP,
    sagas::TAKING_PART,
    stage::Stage,
};

/// Scope, key, table, transaction. A batch writes after savepoints, which have transactions of
/// their own.
const ROWS: &str = "
    SELECT scope, key, 'effect' AS what, CASE WHEN scope <> 'batch' THEN xmin::text::bigint END AS xmin FROM effect
    UNION ALL
    SELECT $1, left(key, -length($2) - 1), 'receipt', xact::text::bigint & 4294967295
    FROM oncebox.message WHERE key LIKE '%:' || $2
    UNION ALL
    SELECT $3, key || ':order:' || step || CASE WHEN change < 0 THEN ':undo' ELSE '' END, 'step', xmin::text::bigint
    FROM step_effect";
const SETTLEMENTS: &str = "SELECT order_id, xmin::text::bigint FROM settlement";

pub(crate) async fn read(stage: &Stage, facts: &Facts) -> Result<Vec<String>> {
    let client = stage.pool.get().await?;
    let effect = |scope: &str, name: &str, what: &str, xmin: Option<i64>| {
        json!({ "of": "effect", "scope": scope, "name": name, "what": what, "xmin": xmin }).to_string()
    };
    let rows = client.query(ROWS, &[&EACH, &RECEIPT_STEP, &TAKING_PART]).await.context("read the effects")?;
    let mut lines: Vec<String> =
        rows.iter().map(|row| effect(row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    let orders = facts.orders();
    for row in client.query(SETTLEMENTS, &[]).await.context("read the settlements")? {
        let name = orders.get(&row.get(0)).map_or("", |name| name.as_str());
        lines.push(effect(CASHIER, name, "settlement", Some(row.get(1))));
    }
    for (effect, books) in [("charge", &facts.books.charges), ("pay-out", &facts.books.payouts)] {
        for (key, line) in books {
            let name = key.strip_suffix(&format!(":{effect}")).unwrap_or(key);
            let times = line.made.len();
            let call =
                json!({ "of": "call", "scope": CASHIER, "name": name, "effect": effect, "times": times });
            lines.push(call.to_string());
        }
    }
    Ok(lines)
}
