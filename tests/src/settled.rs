//! Whether a consumer has done its work.

use async_nats::jetstream::stream::Stream;

/// Whether a durable consumer has settled all that is in its stream: acknowledged, or given up.
/// False also when it does not exist, or NATS does not answer.
///
/// nats-server says of a consumer that it is just making, while another process asks for the same,
/// that nothing is pending: it has not counted yet. So the consumer must have got somewhere too.
pub async fn is_settled(stream: &Stream, durable: &str) -> bool {
    let Ok(stream_info) = stream.get_info().await else { return false };
    let Ok(info) = stream.consumer_info(durable).await else { return false };
    // With a filter the stream's last message may not be for this consumer.
    let is_filtered = !info.config.filter_subject.is_empty() || !info.config.filter_subjects.is_empty();
    let last = stream_info.state.last_sequence;
    let far = if is_filtered { last.min(1) } else { last };
    info.delivered.stream_sequence >= far && info.num_pending == 0 && info.num_ack_pending == 0
}
