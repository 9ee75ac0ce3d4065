//! Calls that are timed.

use tch::Tensor;

use crate::rpc::{body, call};

call! {
    pub(in crate::runner) struct Echo = "bench.echo" -> Echoed {
        number: i64,
    }
}

body! {
    pub(in crate::runner) struct Echoed {
        number: i64,
    }
}

call! {
    pub(in crate::runner) struct Sink = "bench.sink" -> Sunk {
        tensor: Tensor,
    }
}

body! {
    pub(in crate::runner) struct Sunk {
        elements: u64,
    }
}
