//! All that goes on while faults happen in torture and soak: rings turn, operators act, and orders
//! are handled in the second database.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{
    acting::Acting,
    beside::Beside,
    fleet::{BESIDE, url_of},
    stage::Stage,
    turning::{Ring, Turning},
};

#[derive(Debug)]
pub(crate) struct Company {
    pub(crate) acting: Acting,
    beside: Beside,
    /// Of the first database, and of the second one.
    turning: [Turning; 2],
}

impl Company {
    /// The processes that handle orders are harmed for that long at most.
    pub(crate) async fn start(stage: &Stage<'_>, ring: Ring, duration: Duration) -> Result<Self> {
        let url = stage.database_url();
        Ok(Self {
            acting: Acting::start(stage.actor()?),
            beside: Beside::start(stage, duration).await?,
            turning: [url_of(&url, BESIDE), url].map(|url| Turning::start(url, ring)),
        })
    }

    /// Ends it, when all was calm and each act was done; says which acts were done, and how many
    /// segments were emptied.
    pub(crate) async fn stop(self, stage: &Stage<'_>) -> Result<(String, usize)> {
        let acts = self.acting.stop().await.context("what operators did")?;
        stage.say.say("operators have done all that they do; orders beside are waited for");
        let counted = self.beside.stop().await?;
        stage.say.say(format_args!("orders beside, in every mode and by sagas: {counted}"));
        let (mut turns, mut emptied) = (0, 0);
        for turning in self.turning {
            let (more, emptied_more) = turning.stop().await?;
            (turns, emptied) = (turns + more, emptied + emptied_more);
        }
        Ok((format!("{acts}; {turns} turns, {emptied} segments emptied"), emptied))
    }
}
