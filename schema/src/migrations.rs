//! The migrations, in their order.

/// Number, name, file.
pub(crate) type Migration<'a> = (i32, &'a str, &'a str);

pub(crate) const MIGRATIONS: [Migration<'_>; 28] = [
    (1, "grammar", include_str!("../migrations/0001_grammar.sql")),
    (2, "outbox", include_str!("../migrations/0002_outbox.sql")),
    (3, "delayed", include_str!("../migrations/0003_delayed.sql")),
    (4, "operations", include_str!("../migrations/0004_operations.sql")),
    (5, "receipts", include_str!("../migrations/0005_receipts.sql")),
    (6, "inbox", include_str!("../migrations/0006_inbox.sql")),
    (7, "leases", include_str!("../migrations/0007_leases.sql")),
    (8, "claims", include_str!("../migrations/0008_claims.sql")),
    (9, "barrier", include_str!("../migrations/0009_barrier.sql")),
    (10, "sagas", include_str!("../migrations/0010_sagas.sql")),
    (11, "events", include_str!("../migrations/0011_events.sql")),
    (12, "requests", include_str!("../migrations/0012_requests.sql")),
    (13, "segments", include_str!("../migrations/0013_segments.sql")),
    (14, "actions", include_str!("../migrations/0014_actions.sql")),
    (15, "batches", include_str!("../migrations/0015_batches.sql")),
    (16, "order", include_str!("../migrations/0016_order.sql")),
    (17, "effects", include_str!("../migrations/0017_effects.sql")),
    (18, "endings", include_str!("../migrations/0018_endings.sql")),
    (19, "saga_files", include_str!("../migrations/0019_saga_files.sql")),
    (20, "adoption", include_str!("../migrations/0020_adoption.sql")),
    (21, "expectations", include_str!("../migrations/0021_expectations.sql")),
    (22, "letters", include_str!("../migrations/0022_letters.sql")),
    (23, "lines", include_str!("../migrations/0023_lines.sql")),
    (24, "history", include_str!("../migrations/0024_history.sql")),
    (25, "undo", include_str!("../migrations/0025_undo.sql")),
    (26, "canary", include_str!("../migrations/0026_canary.sql")),
    (27, "edit", include_str!("../migrations/0027_edit.sql")),
    (28, "copies", include_str!("../migrations/0028_copies.sql")),
];

/// The schema version that this build installs.
pub const LATEST_VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;
