//! The JetStream consumer as it should be, and how it gets there.

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, Config, DeliverPolicy, FromConsumer, PullConsumer, pull},
    context::ConsumerInfoErrorKind,
    stream::Stream,
};
use tracing::info;

use super::Settings;
use crate::{Error, InvalidSettings};

/// The stream, with its state as of now.
pub(super) async fn stream(jetstream: &jetstream::Context, settings: &Settings) -> Result<Stream, Error> {
    let name = &settings.stream;
    let found = jetstream.get_stream(name).await;
    let stream = found.map_err(|error| Error::Broker(format!("look up stream \"{name}\""), error.into()))?;
    // The version is known once the server has answered, not before.
    if settings.filter_subjects.len() > 1 && !jetstream.client().is_server_compatible(2, 10, 0) {
        return Err(without_filters());
    }
    Ok(stream)
}

/// The durable consumer: created when missing, brought up to date when its settings differ.
pub(super) async fn consumer(stream: &Stream, settings: &Settings) -> Result<PullConsumer, Error> {
    let durable = &settings.durable;
    let Some(found) = info(stream, settings).await? else {
        return create(stream, settings, DeliverPolicy::All).await;
    };
    let (config, differences) = brought_up_to_date(found.config, settings);
    if !differences.is_empty() {
        info!(
            stream = settings.stream,
            durable,
            differences = differences.join(", "),
            "consumer brought up to date"
        );
    }
    let config = pull_config(config)?;
    if differences.is_empty() {
        return stream
            .get_consumer(durable)
            .await
            .map_err(|error| Error::Broker(format!("look up consumer \"{durable}\""), error));
    }
    let changed = stream.create_consumer(config).await.map_err(|error| {
        let what = format!(
            "change {} of consumer \"{durable}\"; delete it if it is not in use",
            differences.join(", ")
        );
        Error::Broker(what, error.into())
    })?;
    check_filters(changed, settings)
}

pub(super) async fn info(
    stream: &Stream,
    settings: &Settings,
) -> Result<Option<jetstream::consumer::Info>, Error> {
    match stream.consumer_info(&settings.durable).await {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::Broker(format!("look up consumer \"{}\"", settings.durable), error.into())),
    }
}

pub(super) async fn create(
    stream: &Stream,
    settings: &Settings,
    deliver_policy: DeliverPolicy,
) -> Result<PullConsumer, Error> {
    let fresh = Config { durable_name: Some(settings.durable.clone()), deliver_policy, ..Config::default() };
    let (config, _) = brought_up_to_date(fresh, settings);
    let created = stream
        .create_consumer(pull_config(config)?)
        .await
        .map_err(|error| Error::Broker(format!("create consumer \"{}\"", settings.durable), error.into()))?;
    check_filters(created, settings)
}

/// The server that keeps the consumer may be older than the one that is connected to.
fn check_filters(consumer: PullConsumer, settings: &Settings) -> Result<PullConsumer, Error> {
    if settings.filter_subjects.len() < 2 || !consumer.cached_info().config.filter_subjects.is_empty() {
        return Ok(consumer);
    }
    Err(without_filters())
}

/// A nats-server older than 2.10 drops a list of filters without a word, and would deliver all. An
/// existing consumer would lose its one filter so.
fn without_filters() -> Error {
    let mistake =
        "several filter_subjects need nats-server 2.10 or later; use one of them, or one consumer for each";
    InvalidSettings(vec![mistake.to_owned()]).into()
}

/// Puts the settings that matter here into the configuration that was found; all others stay. Also
/// returns the names of those that differed.
fn brought_up_to_date(found: Config, settings: &Settings) -> (Config, Vec<&'static str>) {
    // One subject in the field that every version of nats-server knows.
    let (filter_subject, filter_subjects) = match settings.filter_subjects.as_slice() {
        [] => (String::new(), Vec::new()),
        [one] => (one.clone(), Vec::new()),
        several => (String::new(), several.to_vec()),
    };
    let wanted = Config {
        ack_policy: AckPolicy::Explicit,
        ack_wait: settings.ack_wait(),
        // The inbox has a delivery limit of its own; here, exhausted messages would vanish without
        // a trace.
        max_deliver: -1,
        max_ack_pending: settings.max_ack_pending(),
        filter_subject,
        filter_subjects,
        backoff: Vec::new(),
        headers_only: false,
        ..found.clone()
    };
    let differences = [
        ("ack policy", found.ack_policy != wanted.ack_policy),
        ("ack wait", found.ack_wait != wanted.ack_wait),
        ("max deliver", found.max_deliver != wanted.max_deliver),
        ("max ack pending", found.max_ack_pending != wanted.max_ack_pending),
        (
            "filter subject",
            (&found.filter_subject, &found.filter_subjects)
                != (&wanted.filter_subject, &wanted.filter_subjects),
        ),
        ("backoff", found.backoff != wanted.backoff),
        ("headers only", found.headers_only != wanted.headers_only),
    ];
    (wanted, differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect())
}

/// Made by the client: which fields there are depends on the features that it was built with.
fn pull_config(mut config: Config) -> Result<pull::Config, Error> {
    config.metadata.retain(|name, _| !name.starts_with("_nats."));
    let durable = config.durable_name.clone().unwrap_or_default();
    pull::Config::try_from_consumer_config(config).map_err(|error| {
        let what = format!("use consumer \"{durable}\", which pushes; delete it if it is not in use");
        Error::Broker(what, error)
    })
}
