//! The optimistic way: no handler waits, and one that is too late runs again.

use tokio_postgres::types::ToSql;

use crate::{Context, HandlerError};

impl Context<'_> {
    /// Changes one row, if it is still the version that was read: an `UPDATE` with `version =
    /// version + 1` among its assignments and `version = $n` among its conditions.
    ///
    /// When it changed no row, another transaction changed that row in between, or deleted it.
    /// Everything that the handler wrote is then rolled back and it runs again and reads again: at
    /// once for a few times, later after a pause. This suits rows that seldom meet; where they meet
    /// all the time, [`Context::lock`] wastes less.
    ///
    /// ```
    /// use oncebox_inbox::{Context, HandlerError};
    ///
    /// async fn withdraw(cx: &Context<'_>, id: i64, cents: i64) -> Result<bool, HandlerError> {
    ///     let sql = "SELECT cents, version FROM account WHERE id = $1";
    ///     let row = cx.transaction().query_one(sql, &[&id]).await?;
    ///     let (balance, version): (i64, i32) = (row.get(0), row.get(1));
    ///     if balance < cents {
    ///         return Ok(false);
    ///     }
    ///     let sql = "UPDATE account SET cents = $3, version = version + 1 WHERE id = $1 AND version = $2";
    ///     cx.update_version(sql, &[&id, &version, &(balance - cents)]).await?;
    ///     Ok(true)
    /// }
    /// ```
    ///
    /// # Errors
    /// No row was changed: a [conflict](HandlerError::conflict), to be returned. More than one was:
    /// the statement does not name its row, and the message must not be committed. PostgreSQL
    /// refused, or is away.
    pub async fn update_version(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), HandlerError> {
        one_version(self.transaction().execute(sql, parameters).await?)
    }
}

/// The result of an update of one version that has changed `rows` rows, as
/// [`Context::update_version`] has it: for the drivers whose statements have parameters of their
/// own.
///
/// ```
/// # fn example(rows_affected: u64) -> Result<(), oncebox_inbox::HandlerError> {
/// // sqlx: query.execute(&mut **cx.transaction()).await?.rows_affected()
/// oncebox_inbox::one_version(rows_affected)
/// # }
/// ```
///
/// # Errors
/// No row was changed: a [conflict](HandlerError::conflict), to be returned. More than one was: the
/// statement does not name its row, and the message must not be committed.
pub fn one_version(rows: u64) -> Result<(), HandlerError> {
    match rows {
        1 => Ok(()),
        0 => Err(HandlerError::conflict("the row's version is no longer the one that was read")),
        rows => Err(HandlerError::message(format!(
            "an update of one version changed {rows} rows: does it name the row's key?"
        ))),
    }
}
