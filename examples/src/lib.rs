//! Examples that run in CI: an order service and a payment service, each with a database of its
//! own.
//!
//! `order` and `payment` are what a service looks like; start with their modules. `shop` puts HTTP
//! before the first. `fulfilment` has three services that fulfil an order together and undo it when
//! one of them cannot, led by a saga or by choreography. `cashier` has effects outside
//! its database, at `gateway`, which loses answers. `demo` runs the first two with relays, kills
//! what it can, and checks the books with `audit`. The message between them can as well be sent by
//! `producer.sql` or `producer.py`.

pub mod audit;
pub mod cashier;
pub mod config;
pub mod fulfilment;
pub mod gateway;
pub mod order;
pub mod payment;
pub mod shop;
