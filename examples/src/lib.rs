//! Examples that run in CI: services that fulfil orders together, each with a database of its own.
//!
//! `fulfilment` leads: an inventory, billing and shipping serve an order, and undo their part when
//! one of them cannot, led by a saga or by choreography; the shop takes orders over HTTP. `order`
//! and `payment` are two services that exchange messages, and as short as can be; `shop` puts HTTP
//! before the first. The message between them can as well be sent by `producer.sql` or
//! `producer.py`. `cashier` has effects outside its database, at `gateway`, which loses answers.
//! `webhook` takes the deliveries of GitHub and Stripe, and `partitions` reads a log like Kafka's,
//! both without NATS.
//!
//! `demo` runs them with relays, kills processes at random, and checks the books: those of the
//! sagas with `fulfilment::ledger`, those of the messages with `audit`.

pub mod audit;
pub mod cashier;
pub mod config;
pub mod fulfilment;
pub mod gateway;
pub mod order;
pub mod partitions;
pub mod payment;
pub mod shop;
pub mod webhook;
