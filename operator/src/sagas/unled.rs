//! Sagas that no process leads: their file was removed, or only another version of it is led.

use oncebox_connect::words::{counted, for_one};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    rows::from_row,
    shell::quoted,
    time::{Time, text},
};

/// A process that leads says so every 20 seconds.
pub(crate) const UNLED_SECONDS: f64 = 90.0;
/// The defaults of `oncebox saga run`.
const SCOPE: &str = "saga";
const REPLY_TO: &str = "sagas.replies";

/// Sagas of one graph that have not finished and that no process leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagasUnled {
    /// Their type.
    pub saga_type: String,
    /// The version that they began with.
    pub version: i32,
    /// The scope of their orchestrator.
    pub scope: String,
    /// How many, of each state counted to 10,000.
    pub sagas: i64,
    /// When a process last led them; else when the oldest began.
    pub since: Time,
    /// Whether a process has ever led them.
    pub was_led: bool,
    /// Where participants answer, if a file defines them.
    pub reply_to: Option<String>,
    /// The versions of the type that are led.
    pub led_versions: Vec<i32>,
}

from_row!(SagasUnled: saga_type = "type", version, scope, sagas, reply_to, led_versions; row =>
    since: row.get::<_, Option<Time>>("led_at").unwrap_or_else(|| row.get("oldest_at")),
    was_led: row.get::<_, Option<Time>>("led_at").is_some());

impl SagasUnled {
    /// The problem.
    pub(crate) fn what(&self) -> String {
        let Self { saga_type, version, sagas, since, .. } = self;
        let wait = for_one(sagas, "waits", "wait");
        let since = match self.was_led {
            true => format!("no process has led this version since {}", text(*since)),
            false => format!("no process has ever led this version; the oldest began at {}", text(*since)),
        };
        let led: Vec<String> = self.led_versions.iter().map(ToString::to_string).collect();
        let others = match led.as_slice() {
            [] => String::new(),
            [one] => format!(", only version {one} is led"),
            all => format!(", only versions {} are led", all.join(", ")),
        };
        format!("{} of type {saga_type}, version {version}, {wait}: {since}{others}", counted(sagas, "saga"))
    }

    /// The remedy.
    pub(crate) fn remedy(&self) -> String {
        let Self { saga_type, version, scope, reply_to, .. } = self;
        let of_program = format!("start the program that leads version {version} of {saga_type}");
        let Some(reply_to) = reply_to else { return of_program + " as orchestrator " + &quoted(scope) };
        let option = |name: &str, value: &str, usual: &str| match value == usual {
            true => String::new(),
            false => format!(" --{name} {}", quoted(value)),
        };
        format!(
            "lead them with the file of version {version}, under its own path, beside the processes that run: \
             `oncebox saga run {saga_type}.toml{}{}`",
            option("scope", scope, SCOPE),
            option("reply-to", reply_to, REPLY_TO)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::assert_whole;

    fn check(unled: &SagasUnled, expected: [&str; 2]) {
        let (what, remedy) = (unled.what(), unled.remedy());
        assert_whole(&what, &remedy);
        assert_eq!([what.as_str(), remedy.as_str()], expected);
    }

    #[test]
    fn the_version_that_is_missing_is_named_with_its_command() {
        let mut unled = SagasUnled {
            saga_type: "order".to_owned(),
            version: 1,
            scope: "saga".to_owned(),
            sagas: 3,
            since: Time(std::time::UNIX_EPOCH),
            was_led: true,
            reply_to: Some("sagas.replies".to_owned()),
            led_versions: vec![2],
        };
        let lead = "lead them with the file of version 1, under its own path, beside the processes that run: \
                    `oncebox saga run order.toml";
        check(
            &unled,
            [
                "3 sagas of type order, version 1, wait: no process has led this version since 1970-01-01T00:00:00Z, only \
                 version 2 is led",
                &format!("{lead}`"),
            ],
        );
        unled.scope = "shop".to_owned();
        unled.reply_to = Some("shop.replies".to_owned());
        (unled.was_led, unled.sagas) = (false, 1);
        unled.led_versions.clear();
        check(
            &unled,
            [
                "1 saga of type order, version 1, waits: no process has ever led this version; the oldest began at \
                 1970-01-01T00:00:00Z",
                &format!("{lead} --scope 'shop' --reply-to 'shop.replies'`"),
            ],
        );
        unled.reply_to = None;
        let program = "start the program that leads version 1 of order as orchestrator 'shop'";
        assert_eq!(unled.remedy(), program);
    }
}
