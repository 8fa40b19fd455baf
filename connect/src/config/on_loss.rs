//! The reaction to a stream that has lost what it acknowledged.

/// The reaction to a stream that has lost what it acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// What is missing at the end of a stream is sent again; of a stream that was made anew, a work
    /// queue, or one that can prove nothing any more, it is reported.
    #[default]
    Auto,
    /// What is missing is sent again, whatever has become of the stream.
    Resend,
    /// A loss is only reported.
    Report,
}

impl OnLoss {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "resend" => Ok(Self::Resend),
            "report" => Ok(Self::Report),
            other => Err(format!("{other:?} is not one of \"auto\", \"resend\" and \"report\"")),
        }
    }
}
