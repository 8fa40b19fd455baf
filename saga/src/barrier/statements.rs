//! The statements of the barrier.

use oncebox_schema::SchemaName;

/// The texts of the statements, for one schema.
#[derive(Clone)]
pub(super) struct Statements {
    pub(super) enter_action: String,
    pub(super) end_action: String,
    pub(super) enter_compensation: String,
    pub(super) end_compensation: String,
    pub(super) sweep: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            enter_action: schema.sql(include_str!("sql/enter_action.sql")),
            end_action: schema.sql(include_str!("sql/end_action.sql")),
            enter_compensation: schema.sql(include_str!("sql/enter_compensation.sql")),
            end_compensation: schema.sql(include_str!("sql/end_compensation.sql")),
            sweep: schema.sql(include_str!("sql/sweep.sql")),
        }
    }
}
