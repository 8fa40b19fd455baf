//! Examples that run in CI: an order service and a payment service, each with a database of its own.
//!
//! `order` and `payment` are what a service looks like; start with their modules. `shop` puts HTTP before the first. `demo` runs both with relays, kills
//! what it can, and checks the books with `audit`. The message between them can as well be sent by `producer.sql` or
//! `producer.py`.

pub mod audit;
pub mod config;
pub mod order;
pub mod payment;
pub mod shop;
