//! The limits of a pass: which of the due messages it may hold.

use tokio_postgres::Row;

/// Bytes of a large payload that are read at a time; a smaller one comes with its row.
pub(super) const PIECE: i32 = 1024 * 1024;

/// Which of the due messages a pass may hold.
pub(crate) struct Room<'a> {
    /// A larger payload is left out, since the server would not take it: see
    /// [`Message::is_left_out`].
    pub(crate) payload_max: usize,
    /// Whether a payload of so many bytes may be held as well.
    pub(crate) admit: &'a mut (dyn FnMut(usize) -> bool + Send),
}

impl Room<'_> {
    pub(super) fn with_row_max(&self) -> i32 {
        with_row_max(self.payload_max)
    }

    /// Whether the payload of a row need not be there: it is decided upon without.
    fn is_left_out(&self, row: &Row) -> bool {
        row.get("blocked") || payload_bytes(row) > self.payload_max
    }

    /// Whether the row may be held, with its payload unless that is left out.
    pub(super) fn admits(&mut self, row: &Row) -> bool {
        let bytes = if self.is_left_out(row) { 0 } else { payload_bytes(row) };
        (self.admit)(bytes)
    }
}

/// Up to this size payloads come with their rows.
pub(super) fn with_row_max(payload_max: usize) -> i32 {
    i32::try_from(payload_max).unwrap_or(PIECE).min(PIECE)
}

/// The size of the payload, which may have come with the row or not.
fn payload_bytes(row: &Row) -> usize {
    usize::try_from(row.get::<_, i32>("payload_bytes")).unwrap_or(0)
}

/// Place and size of a payload that did not come with its row and is to be read.
pub(super) fn large(row: &Row, room: &Room<'_>) -> Option<((i16, i64), usize)> {
    let is_there = row.get::<_, Option<&[u8]>>("payload").is_some();
    (!is_there && !room.is_left_out(row)).then(|| ((row.get(0), row.get(1)), payload_bytes(row)))
}
