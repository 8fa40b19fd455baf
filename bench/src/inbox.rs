//! Placeholder until the inbox crate is there.
use crate::{config::Config, report::Report, servers::Servers};
pub(crate) async fn measure(_: &Servers, _: &Config, _: &mut Report) -> anyhow::Result<()> {
    Ok(())
}
