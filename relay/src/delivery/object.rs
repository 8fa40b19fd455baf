//! A payload that lies in a bucket of the NATS Object Store, beside its message.

/// A larger payload travels in a bucket only: the relay would have to hold it whole.
pub(crate) const INLINE_MAX: usize = 8 * 1024 * 1024;

/// A payload in a bucket, put there whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bucket: String,
    pub(crate) name: String,
    /// `SHA-256=...`, as the bucket has it.
    pub(crate) digest: String,
    /// The `Nats-Msg-Id` that the row's message has with the payload inline.
    pub(crate) id: String,
}

impl Object {
    /// The headers by which a consumer finds and checks the payload. The body is empty: a reader
    /// that does not know these headers must fail, and not take a reference for the payload.
    pub(crate) fn headers(&self, bytes: usize) -> [(&'static str, String); 3] {
        [
            ("Oncebox-Object", format!("{}/{}", self.bucket, self.name)),
            ("Oncebox-Object-Bytes", bytes.to_string()),
            ("Oncebox-Object-Digest", self.digest.clone()),
        ]
    }
}
