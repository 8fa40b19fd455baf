//! The type of a handler's reply has changed: a caller that asks for it gets an error; a consumer
//! does not ask.

use oncebox_inbox::{Answer, Context, Error, Handler, HandlerError, Outcome, Verdict};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::inbox::{
    consumer::{consumer, publish, settled},
    support::{Does, Job, count, effects, inbox, insert, message, stream_environment},
};

/// [`Does::effect`], with another type of reply.
struct Changed;

impl Handler for Changed {
    type Message = Job;
    type Reply = Job;

    async fn handle(&self, cx: Context<'_>, job: Job) -> Result<Outcome<Job>, HandlerError> {
        insert(&cx, &job).await?;
        Ok(Outcome::done(job))
    }
}

/// Duplicates are settled at once, and those after them in their line go on.
#[tokio::test]
async fn a_changed_type_of_reply_blocks_no_duplicate() {
    for batch in [1, 10] {
        let env = stream_environment().await;
        let jetstream = env.jetstream().await;
        for n in 0..3 {
            inbox(&env).run(&Does::effect(), &message(&format!("k{n}"), n)).await.unwrap();
        }
        let verdict = inbox(&env).run(&Changed, &message("k0", 0)).await.unwrap();
        let Verdict::Replayed(stored) = verdict else { panic!("{verdict:?}") };
        assert!(matches!(stored.decode::<Job>(), Err(Error::StoredReply { .. })));
        assert_eq!(stored.decode::<String>().unwrap(), Answer::Done("effect 1".to_owned()));
        for n in 0..6 {
            publish(&jetstream, env.subject("s"), &format!("k{n}"), n, Some("line")).await;
        }
        let (inbox, shutdown, mut tasks) = (inbox(&env), CancellationToken::new(), JoinSet::new());
        let consumer = consumer(&env).await.batch(batch).concurrency(1);
        tasks.spawn(consumer.run(inbox.clone(), Changed, shutdown.clone()));
        settled(&env).await;
        shutdown.cancel();
        tasks.join_next().await.unwrap().unwrap().unwrap();
        let counts = inbox.counts();
        assert_eq!((effects(&env).await, counts.replayed, counts.retried), (6, 3, 0), "{batch}");
        assert_eq!(count(&env, "oncebox.dead_letter").await, 0);
    }
}
