//! Examples that run in CI: an order service and a payment service.
