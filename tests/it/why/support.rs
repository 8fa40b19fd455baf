//! The command, and the remedy that it names.

use async_nats::jetstream::stream::Stream;
use deadpool_postgres::Object;
use oncebox_relay::Values;
use oncebox_tests::TestEnv;
use serde_json::Value;
use tokio::{process::Command, time::timeout};
use tokio_postgres::Client;

use crate::{
    operator::{doctor::run_with, status::named},
    relay::{
        process::program,
        support::{LIMIT, client, fresh_stream, stream_config, values_of},
    },
};

/// A database with a stream that takes subjects below `taken`, and a session that counts as a
/// relay.
pub(crate) struct Scene {
    pub(crate) env: TestEnv,
    pub(crate) stream: Stream,
    pub(crate) pg: Client,
    pub(crate) values: Values,
    pub(crate) taken: String,
    _relay: Object,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let env = TestEnv::new().await;
        let taken = env.subject("taken.a");
        let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
        let (pg, values) = (env.pg().await, values_of(&env));
        let _relay = client(&named(&env, "oncebox%20relay")).await;
        Self { env, stream, pg, values, taken, _relay }
    }

    pub(crate) async fn enqueue(&self, key: &str, subject: &str, ordering_key: Option<&str>) {
        let sql = "SELECT oncebox.enqueue($1, $2, convert_to('{\"n\": 1}', 'UTF8'), '{}', $3)";
        self.pg.execute(sql, &[&key, &subject, &ordering_key]).await.unwrap();
    }

    pub(crate) async fn why(&self, key: &str) -> (i32, Value) {
        why(self.env.database_url(), self.env.nats_url(), &[key]).await
    }

    /// The only answer.
    pub(crate) async fn answer(&self, key: &str) -> Value {
        let (_, told) = self.why(key).await;
        let answers = told["answers"].as_array().unwrap();
        assert_eq!(answers.len(), 1, "{told}");
        answers[0].clone()
    }

    /// Something holds the message there, for these reasons, and the remedy has these words.
    pub(crate) async fn assert_held(
        &self,
        key: &str,
        station: &str,
        what: &[&str],
        remedy: &[&str],
    ) -> Value {
        let answer = self.answer(key).await;
        assert_held(&answer, station, what, remedy);
        answer
    }

    /// Runs the command of the remedy in a shell, as an operator who pastes it.
    pub(crate) async fn mend(&self, answer: &Value) {
        let command = answer["remedy"]["command"].as_str().unwrap_or_else(|| panic!("a command: {answer}"));
        if answer["remedy"]["is_sql"] == true {
            self.pg.batch_execute(command).await.unwrap();
            return;
        }
        let program = program();
        let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env_clear().env("PATH", path).kill_on_drop(true);
        shell.env("DATABASE_URL", self.env.database_url()).env("NATS_URL", self.env.nats_url());
        let output = timeout(LIMIT, shell.output()).await.expect("an end").unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Exit code and document of the command.
pub(crate) async fn why(database_url: &str, nats_url: &str, arguments: &[&str]) -> (i32, Value) {
    let environment = [("DATABASE_URL", database_url), ("NATS_URL", nats_url)];
    let (code, output, log) = run_with(&[&["why", "--json"], arguments].concat(), &environment).await;
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}")))
}

pub(crate) fn assert_held(answer: &Value, station: &str, what: &[&str], remedy: &[&str]) {
    assert_eq!((&answer["outcome"], &answer["station"]), (&"held".into(), &station.into()), "{answer:#}");
    let is = |text: &Value, part: &str| text.as_str().is_some_and(|text| text.contains(part));
    for part in what {
        assert!(is(&answer["what"], part), "{part:?} in {answer:#}");
    }
    for part in remedy {
        let found = ["what", "command"].iter().any(|name| is(&answer["remedy"][name], part));
        assert!(found, "{part:?} in the remedy of {answer:#}");
    }
}
