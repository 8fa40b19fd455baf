//! A write that a handler leaves to the commit, with its encoded parameters.

use std::{error::Error as StdError, fmt};

use bytes::BytesMut;
use oncebox_schema::Transaction;
use tokio_postgres::{
    Error, Statement,
    types::{Format, IsNull, ToSql, Type, to_sql_checked},
};

use crate::HandlerError;

/// A write over tokio-postgres, with its encoded parameters.
pub struct Write {
    statement: Deferrable,
    parameters: Vec<Encoded>,
}

/// The statement of a deferred write.
#[derive(Debug)]
pub enum Deferrable {
    /// A statement that is prepared in this session.
    Prepared(Statement),
    /// The statement's text, and the types of its parameters.
    Text(String, Vec<Type>),
}

impl Deferrable {
    fn types(&self) -> &[Type] {
        match self {
            Self::Prepared(statement) => statement.params(),
            Self::Text(_, types) => types,
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").field("parameters", &self.parameters.len()).finish_non_exhaustive()
    }
}

impl Write {
    /// Encodes the values now, so that they need not live any longer and an error in them is the
    /// handler's error.
    pub(crate) fn new(
        statement: Deferrable,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Self, HandlerError> {
        let (types, given) = (statement.types(), parameters.len());
        if types.len() != given {
            let wanted = types.len();
            return Err(HandlerError::message(format!(
                "a deferred write has {given} parameters; its statement takes {wanted}"
            )));
        }
        let encoded = parameters.iter().zip(types).enumerate().map(|(index, (value, sql_type))| {
            Encoded::new(*value, sql_type).map_err(|problem| {
                HandlerError::message(format!("parameter ${} of a deferred write: {problem}", index + 1))
            })
        });
        let parameters = encoded.collect::<Result<_, _>>()?;
        Ok(Self { statement, parameters })
    }

    pub(crate) async fn execute(&self, transaction: &Transaction) -> Result<(), Error> {
        let parameters: Vec<&(dyn ToSql + Sync)> =
            self.parameters.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        match &self.statement {
            Deferrable::Prepared(statement) => transaction.execute(statement, &parameters).await,
            Deferrable::Text(sql, types) => {
                let typed: Vec<_> = parameters.into_iter().zip(types.iter().cloned()).collect();
                transaction.execute_typed(sql, &typed).await
            }
        }
        .map(drop)
    }
}

/// A value as it goes over the wire.
struct Encoded {
    format: Format,
    /// `None` for NULL.
    bytes: Option<BytesMut>,
}

impl Encoded {
    fn new(value: &(dyn ToSql + Sync), sql_type: &Type) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let mut bytes = BytesMut::new();
        let bytes = match value.to_sql_checked(sql_type, &mut bytes)? {
            IsNull::Yes => None,
            IsNull::No => Some(bytes),
        };
        Ok(Self { format: value.encode_format(sql_type), bytes })
    }
}

/// The value is left out, since it may be a secret.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").finish_non_exhaustive()
    }
}

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        Ok(match &self.bytes {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        self.format
    }

    to_sql_checked!();
}
