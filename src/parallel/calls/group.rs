//! The store of a process group, as its first member has it for the others.

use crate::rpc::{body, call};

call! {
    /// Waits for keys.
    pub(in crate::parallel) struct Wait = "group.wait" -> Waited {
        group: String,
        within_ms: u64,
        ..keys: String,
    }
}

body! {
    pub(in crate::parallel) struct Waited {
        all_there: bool,
    }
}

call! {
    /// Waits for the value of a key.
    pub(in crate::parallel) struct Get = "group.get" -> Got {
        group: String,
        key: String,
        within_ms: u64,
    }
}

body! {
    pub(in crate::parallel) struct Got {
        /// None: it has not come.
        value: Option<Vec<u8>>,
    }
}

call! {
    pub(in crate::parallel) struct Set = "group.set" -> () {
        group: String,
        key: String,
        value: Vec<u8>,
    }
}

call! {
    /// Adds to a counter.
    pub(in crate::parallel) struct Add = "group.add" -> Added {
        group: String,
        key: String,
        amount: i64,
    }
}

body! {
    pub(in crate::parallel) struct Added {
        sum: i64,
    }
}

call! {
    /// Sets a key that has the expected value.
    pub(in crate::parallel) struct CompareSet = "group.compare_set" -> Compared {
        group: String,
        key: String,
        expected: Vec<u8>,
        wanted: Vec<u8>,
    }
}

body! {
    pub(in crate::parallel) struct Compared {
        /// What the key has now; what was expected where it is not there.
        value: Vec<u8>,
    }
}

call! {
    pub(in crate::parallel) struct Delete = "group.delete" -> Deleted {
        group: String,
        key: String,
    }
}

body! {
    pub(in crate::parallel) struct Deleted {
        was_there: bool,
    }
}

call! {
    pub(in crate::parallel) struct Count = "group.count" -> KeyCount {
        group: String,
    }
}

body! {
    pub(in crate::parallel) struct KeyCount {
        keys: u64,
    }
}
