//! Business processes over several services, each with a database of its own.
//!
//! A saga is a chain of actions, each a message to one service. When one of them fails, those
//! before it are undone by compensations: messages with the keys `key:step:undo`.
//!
//! # Who coordinates
//!
//! [`Orchestrator`] leads instances of a [`Definition`] to their end, or back. Each change of one
//! is a transaction of its service's database, which claims the answer, changes the state and
//! enqueues the next commands.
//!
//! # Who takes part
//!
//! Messages come late, twice and in the wrong order, so a service that takes part has to answer
//! three questions that an inbox alone does not. It has to know that a compensation undoes
//! something, that an action which comes after its own compensation must not act any more, and to
//! whom it answers.
//!
//! - [`Barrier`] makes an action and its compensation leave the effect of one of them, in any order
//!   and number.
//! - [`Replier`] answers on the subject that the command names, if the participant allows it, in
//!   the handler's transaction.
//!
//! ```no_run
//! use oncebox_inbox::{Context, Handler, HandlerError, Outcome};
//! use oncebox_saga::{Action, Barrier, Compensation, Replier};
//!
//! #[derive(serde::Deserialize)]
//! struct Reserve { order: i64, item: String, count: i32 }
//!
//! /// The replier is `Replier::new(Outbox::default(), ["sagas.replies"])`.
//! struct ReserveStock { barrier: Barrier, replier: Replier }
//!
//! impl Handler for ReserveStock {
//!     type Message = Reserve;
//!     type Reply = ();
//!
//!     async fn handle(&self, cx: Context<'_>, order: Reserve) -> Result<Outcome<()>, HandlerError> {
//!         let outcome = match self.barrier.action(&cx).await? {
//!             Action::Act => {
//!                 let sql = "UPDATE stock SET free = free - $2 WHERE item = $1 AND free >= $2";
//!                 match cx.transaction().execute(sql, &[&order.item, &order.count]).await? {
//!                     1 => Outcome::done(()),
//!                     _ => {
//!                         self.barrier.had_no_effect(&cx).await?;
//!                         Outcome::reject(())
//!                     }
//!                 }
//!             }
//!             Action::Acted => Outcome::done(()),
//!             // The saga gave up before this came: nobody would release a reservation made now.
//!             Action::Refused => Outcome::reject(()),
//!         };
//!         self.replier.reply(&cx, &outcome).await?;
//!         Ok(outcome)
//!     }
//! }
//!
//! /// Consumes the subject of the compensations: its keys end with `:undo`.
//! struct ReleaseStock { barrier: Barrier, replier: Replier }
//!
//! impl Handler for ReleaseStock {
//!     type Message = Reserve;
//!     type Reply = ();
//!
//!     async fn handle(&self, cx: Context<'_>, order: Reserve) -> Result<Outcome<()>, HandlerError> {
//!         if self.barrier.compensation(&cx).await? == Compensation::Undo {
//!             let sql = "UPDATE stock SET free = free + $2 WHERE item = $1";
//!             cx.transaction().execute(sql, &[&order.item, &order.count]).await?;
//!         }
//!         let outcome = Outcome::done(());
//!         self.replier.reply(&cx, &outcome).await?;
//!         Ok(outcome)
//!     }
//! }
//! ```

mod barrier;
mod command;
mod counts;
mod decide;
mod definition;
mod error;
mod file;
mod graph;
mod instance;
mod likeness;
mod orchestrator;
mod progress;
mod recording;
mod replying;
#[doc(hidden)]
pub mod rules;
mod store;

pub use barrier::{Action, Barrier, Compensation, InvalidBarrier};
pub use counts::Counts;
pub use definition::{Definition, DefinitionBuilder, Step};
pub use error::Error;
pub use file::{FileMistake, Outcome, SagaFile, Scenarios};
pub use graph::{Graph, InvalidDefinition, Mistake};
pub use orchestrator::{Orchestrator, OrchestratorBuilder, Started, Timers, watched::Watched};
pub use replying::Replier;
