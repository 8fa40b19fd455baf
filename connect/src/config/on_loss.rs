//! The reaction to a stream that has lost acknowledged messages.

/// The reaction to a stream that has lost acknowledged messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Messages missing at the end of a stream are sent again; the loss of a stream that was made
    /// anew, of a work queue, or of one that can prove nothing any more, is reported.
    #[default]
    Auto,
    /// Missing messages are sent again in every case.
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
