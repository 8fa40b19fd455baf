//! The life of the process: configuration, logging, run, exit code.

mod command;

use std::process::ExitCode;

use oncebox_connect::error::{RelayError, error_chain};

const FAILED: u8 = 1;
const BAD_CONFIGURATION: u8 = 64;
const UNREACHABLE: u8 = 69;
const LOGIN_REFUSED: u8 = 77;

fn main() -> ExitCode {
    let command = match command::Command::from_process() {
        Ok(command) => command,
        Err(refusal) => {
            refusal.print();
            return ExitCode::from(refusal.exit_code());
        }
    };
    command::start_logging(&command);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(command.run()),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tracing::error!("{}", error_chain(error.as_ref()));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The exit code of a command that failed.
fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<RelayError>() {
        Some(
            RelayError::PostgresUnreachable { .. }
            | RelayError::PostgresTls { .. }
            | RelayError::NatsUnreachable { .. }
            | RelayError::NatsTls { .. },
        ) => UNREACHABLE,
        Some(
            RelayError::DatabaseMissing { .. }
            | RelayError::PostgresRefused { .. }
            | RelayError::NatsRefused { .. },
        ) => LOGIN_REFUSED,
        Some(RelayError::Postgres(error)) if error.is_full() => UNREACHABLE,
        _ => FAILED,
    }
}
