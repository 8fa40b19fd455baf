//! stub
/// Order
#[derive(Debug, Clone, Copy)]
pub enum Order { /// x
 PerProcess }
/// Consumer
#[derive(Debug)]
pub struct Consumer;
