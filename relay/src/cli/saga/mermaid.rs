//! A saga as a flowchart for Mermaid: its steps in the order in which they were sent, each with its
//! state and its compensation.

use oncebox_relay::SagaProgress;

pub(super) fn draw(progress: &SagaProgress) -> String {
    let mut text = String::from("flowchart LR\n");
    let mut last: Option<usize> = None;
    for (number, step) in progress.steps.iter().enumerate() {
        let class = step.state.replace('-', "_");
        text += &format!("  s{number}[\"{}<br/>{}\"]:::{class}\n", step.step, step.state);
        if let Some(last) = last {
            text += &format!("  s{last} --> s{number}\n");
        }
        if step.undo_attempt > 0 {
            text += &format!("  u{number}([\"{}:undo\"]):::{class}\n  s{number} -.-> u{number}\n", step.step);
        }
        last = Some(number);
    }
    let state = &progress.saga.state;
    text += &format!("  end_of_it([\"{state}\"]):::{state}\n");
    text += &last.map(|last| format!("  s{last} --> end_of_it\n")).unwrap_or_default();
    text += "  classDef sent,running,undoing,compensating fill:#cde\n";
    text += "  classDef done,completed fill:#cec\n";
    text += "  classDef undone,compensated,rejected fill:#eee\n";
    text += "  classDef failed,undo_failed,stuck,quarantined,abandoned fill:#ecc\n";
    text
}
