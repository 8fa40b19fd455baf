//! A definition: the steps, with the command that each sends and the meaning of its answers.

mod step;

use std::{fmt, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::graph::{Draft, Graph, InvalidDefinition, checked};
pub use step::Step;
pub(crate) use step::{Code, Make, Unreadable};

/// A kind of business process: its steps, and the data `D` that an instance carries along. Cheap to
/// clone.
///
/// Steps run one after another, and those of [`parallel`](DefinitionBuilder::parallel) at the same
/// time. When one fails, those that were sent before are undone in reverse order. After the
/// [pivot](Step::pivot) nothing is undone any more: a step that fails there waits for an operator.
///
/// `D` is stored as JSON in PostgreSQL, as `jsonb`: no NUL in texts. It may grow by fields that
/// have a default (`#[serde(default)]`). Any other change of it, or of the
/// [graph](Definition::graph), needs a new version; keep the old one registered until its last
/// instance has finished.
///
/// ```
/// use std::time::Duration;
///
/// use oncebox_saga::{Definition, Step};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderData { order: i64, cents: i64, charge: Option<i64> }
/// #[derive(Serialize)]
/// struct Charge { order: i64, cents: i64 }
/// #[derive(Serialize)]
/// struct Refund { charge: Option<i64> }
/// #[derive(Deserialize)]
/// struct Charged { id: i64 }
/// #[derive(Serialize)]
/// struct Ship { order: i64 }
///
/// let order = Definition::<OrderData>::builder("order", 1)
///     .step(
///         Step::new("pay", "payment.charge", |order: &OrderData| Charge { order: order.order, cents: order.cents })
///             .scope("payment-service:charge")
///             .on_done(|order: &mut OrderData, charged: Charged| order.charge = Some(charged.id))
///             .compensation("payment.refund", |order: &OrderData| Refund { charge: order.charge })
///             .deadline(Duration::from_secs(60)),
///     )
///     .step(
///         Step::new("ship", "shipping.ship", |order: &OrderData| Ship { order: order.order })
///             .scope("shipping-service:ship")
///             .pivot(),
///     )
///     .build()?;
/// assert!(order.graph().mermaid().contains("pay"));
/// # Ok::<(), oncebox_saga::InvalidDefinition>(())
/// ```
pub struct Definition<D> {
    pub(crate) inner: Arc<Inner<D>>,
}

pub(crate) struct Inner<D> {
    pub(crate) graph: Graph,
    pub(crate) steps: Vec<Code<D>>,
    /// How SQL starts an instance, as JSON, if the definition is a file.
    pub(crate) plan: Option<String>,
}

impl<D> Clone for Definition<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<D> fmt::Debug for Definition<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition").field("graph", &self.inner.graph).finish_non_exhaustive()
    }
}

impl<D: Serialize + DeserializeOwned + Send + Sync + 'static> Definition<D> {
    /// A definition of this name, which matches `[a-z0-9][a-z0-9._-]{0,63}`, and version.
    pub fn builder(name: impl Into<String>, version: u16) -> DefinitionBuilder<D> {
        DefinitionBuilder { name: name.into(), version, stages: Vec::new(), deadline: None }
    }

    /// The shape of the process.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }
}

/// Puts a [`Definition`] together; see [`Definition::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct DefinitionBuilder<D> {
    name: String,
    version: u16,
    stages: Vec<Vec<Step<D>>>,
    deadline: Option<Duration>,
}

impl<D> fmt::Debug for DefinitionBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DefinitionBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<D: Serialize + DeserializeOwned + Send + Sync + 'static> DefinitionBuilder<D> {
    /// Adds a step. It comes after all steps that were added by the call before, unless it names
    /// the steps that it comes [after](Step::after).
    pub fn step(self, step: Step<D>) -> Self {
        self.parallel([step])
    }

    /// Adds steps that run in parallel, each after all steps that were added by the call before.
    pub fn parallel(mut self, steps: impl IntoIterator<Item = Step<D>>) -> Self {
        self.stages.push(steps.into_iter().collect());
        self
    }

    /// How long an instance may take from its start until its pivot is done, or until it is
    /// complete if it has no pivot. An instance that takes longer is undone. At most a year.
    /// Default: only the steps have deadlines.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Builds the definition, if it is valid.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn build(self) -> Result<Definition<D>, InvalidDefinition> {
        let mut drafts: Vec<Draft> = Vec::new();
        let mut steps = Vec::new();
        let mut last_stage: Vec<String> = Vec::new();
        for stage in self.stages {
            let names: Vec<String> = stage.iter().map(|step| step.name().to_owned()).collect();
            for step in stage {
                let (draft, code) = step.into_parts(&last_stage);
                drafts.push(draft);
                steps.push(code);
            }
            if !names.is_empty() {
                last_stage = names;
            }
        }
        let graph = checked(&self.name, self.version, &drafts, self.deadline)?;
        Ok(Definition { inner: Arc::new(Inner { graph, steps, plan: None }) })
    }
}
